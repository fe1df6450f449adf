"""Devices that obey orders."""
