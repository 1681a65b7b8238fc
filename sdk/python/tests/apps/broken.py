import shop.missing  # type: ignore[import-not-found]  # noqa: F401
