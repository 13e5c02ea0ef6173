"""Tabs of this provider: their ledgers, their channels, and the routes to their owners."""
