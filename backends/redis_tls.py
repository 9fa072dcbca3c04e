"""RedisTls: whether the files of a place hold what they are for. It connects nowhere."""

import ssl

from unikv.backends.redis_errors import failure
from unikv.backends.redis_url import Tls
from unikv.errors import StoreError


def check_files(tls: Tls, place: object) -> None:
    """Raise `StoreError` unless certificates and key can be loaded.

    Else a connection would fail with words that name no option, or ask a terminal for the pass
    phrase of a key and wait.
    """

    def no_phrase() -> str:
        raise failure(f"{place}: keyfile= has a pass phrase: want a key without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tls.ca_certs is not None:
            context.load_verify_locations(tls.ca_certs)
    except OSError as error:  # `ssl.SSLError` is one
        raise failure(f"{place}: ca_certs= is no file of certificates in PEM") from error
    try:
        if tls.certfile is not None:
            context.load_cert_chain(tls.certfile, tls.keyfile, password=no_phrase)
    except StoreError:
        raise
    except OSError as error:
        wanted = "want a certificate and the private key that belongs to it, in PEM"
        raise failure(f"{place}: certfile= and keyfile=: {wanted}") from error
