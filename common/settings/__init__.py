"""Declare the programs' settings as fields of attrs classes, and read them from variables, TOML and credentials.

A field declares the kind of its value, a sentence for the operator and a default:

    @attrs.frozen(slots=True, kw_only=True)
    class Settings:
        port: int = setting(integer(1, 65535), "HTTP port", 8402)
        api_key: str = setting(text, "key of the model server", secret=True)

    read_from_sources(Settings, Environment(os.environ), Credentials.of(os.environ))

`kinds` has the kinds of values. `reader` has the declaration and the sources. `toml` reads files and nested tables.
`listing` prints the table of a program's settings.
"""
