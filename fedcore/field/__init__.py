"""A method on real devices, whose examples never leave them (docs/field.md)."""
