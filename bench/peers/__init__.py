"""``make bench-peers``: the same work on Headrace, NATS JetStream and Redis Streams, in one run.

- ``servers``  starts the peers' servers on loopback with folders of their own, and ends them
- ``work``     what is measured: values, sizes, and a way to do a piece of work on a system
- ``nats``     JetStream, with its default and with ``sync_interval: always``
- ``redis``    Redis Streams, with ``appendfsync everysec`` and ``always``
- ``log``      Headrace
- ``latency``  from a publisher in one process to a consumer in another

Every figure of a peer is its best honest loop from Python: many messages in flight, one system
call for many of them where its client allows it, no more answers waited for than its guarantee
needs.  What a confirmed publish or ack survives is printed beside it.
"""
