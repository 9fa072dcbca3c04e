"""Tools: the command line and what it shows. They know the library, which knows not them."""
