"""One module per API: a request becomes a response.

A handler is ``async def handle(broker, request, context) -> response``.  Produce and Fetch, the hot
path, have their own shape in `produce.handler` and `fetch.handler`.

Pure.
"""
