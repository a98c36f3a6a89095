"""Fuzz targets, one per decoder of bytes from outside, their corpora, and the sanitizer build they run on.

``python -m tests.fuzz.run`` fuzzes (``atheris``, clang); ``python -m tests.fuzz.sanitize`` runs the tests on the
sanitized kernels; ``test_corpus.py`` replays every corpus on the normal build and needs neither.
"""
