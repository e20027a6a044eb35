"""The JSON API of a namespace, and its metrics for Prometheus: `/$api/v1/...` and `/metrics`.

    api = StatusApi(gateway, usage_meter, stores=disks)
    HttpApp(administration, authorise, extra_routes=api.routes)

Owns the endpoints, who may read them, and the collection of figures from all processes of the server. Every process
answers for the whole namespace: `process_status` inspects this process, `collector` asks the other processes. Knows
nothing of sockets. The resources are in `model.status`; docs/api.md and docs/metrics.md describe them for users.
"""
