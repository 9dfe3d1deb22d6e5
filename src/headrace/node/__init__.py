"""The node: an HTTP server over one catalog, for people (the console) and for programs.

=================== ======================================================================
``observer``        reads one snapshot of everything, at a pace that never takes much
``live``            tells those who listen what changed, as server-sent events
``history``         lag and rates over time, in rings and in an internal stream
``routes/``         the table of routes: role, request, answer, handler; OpenAPI is made of it
``access/``         who gets in: tokens, roles, scopes, cookies, and who did what
``metrics``         for Prometheus
``console/``        the web page: ES modules, custom elements, CSS
``serving``         the server's beginning and end
=================== ======================================================================
"""
