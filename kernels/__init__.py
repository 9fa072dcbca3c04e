"""Kernels: move bytes between pool views and staging. They know no store, key or header."""
