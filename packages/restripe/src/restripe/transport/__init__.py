"""Transport: how bytes cross between ranks."""
