"""Backends: one module a store, imported by the registry on use. They know no KV."""
