import shop.missing  # noqa: F401
