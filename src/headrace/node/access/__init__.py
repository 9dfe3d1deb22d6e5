"""Who gets in: tokens with roles and scopes, one-time codes, cookies, and a record of changes."""
