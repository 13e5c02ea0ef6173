"""Trace all programs with OpenTelemetry. Tracing is off without the extra `tracing`, and off unless configured.

`spans` creates spans, and `export` sends them to a collector. See docs/decisions/0016-tracing.md.
"""
