"""Settings of the programs: declared once as fields of attrs classes, read from variables, TOML and credentials.

A field declares the kind of its value, a sentence for the operator and a default:

    @attrs.frozen(slots=True, kw_only=True)
    class Settings:
        port: int = setting(integer(1, 65535), "HTTP port", 8402)
        api_key: str = setting(text, "key of the model server", secret=True)

    read(Settings, Environment(os.environ), Credentials.of(os.environ))

`kinds` has the kinds of values, `reader` the declaration and the sources, `toml` files and nested tables, `listing` the
table of a program's settings.
"""
