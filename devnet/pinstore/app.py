"""The pin store as one ASGI application: the S3 interface for whoever holds the key, the gateway for all."""

from starlette.applications import Starlette
from starlette.routing import Route

from devnet.pinstore.gateway import Gateway
from devnet.pinstore.objects import Objects
from devnet.pinstore.s3 import S3
from devnet.pinstore.sigv4 import Credential


def build(objects: Objects, bucket: str, credential: Credential) -> Starlette:
    """`bucket` must not be named `ipfs`, which is the gateway's path."""
    methods = ["GET", "HEAD", "PUT", "POST", "DELETE"]
    return Starlette(
        routes=[
            Route("/ipfs/{cid}", Gateway(objects).endpoint, methods=["GET"]),
            Route("/{path:path}", S3(objects, bucket, credential).endpoint, methods=methods),
        ]
    )
