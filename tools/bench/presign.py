# SPDX-License-Identifier: Apache-2.0
"""presign.py put|get ORIGIN COUNT FILE: prints a configuration by which curl puts the file as so many objects of the
bucket `blocks`, or gets as many. The URLs are signed, so that curl has nothing to sign."""

import datetime
import hashlib
import hmac
import os
import sys
import urllib.parse

OBJECTS = 128


def mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


verb, origin, count, file = sys.argv[1:]
now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
scope = f"{now[:8]}/us-east-1/s3/aws4_request"
key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
for part in scope.split("/"):
    key = mac(key, part)
parameters = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": f"{os.environ['AWS_ACCESS_KEY_ID']}/{scope}",
    "X-Amz-Date": now,
    "X-Amz-Expires": "3600",
    "X-Amz-SignedHeaders": "host",
}
query = urllib.parse.urlencode(parameters, safe="")
host = origin.split("//")[1]
for i in range(int(count)):
    path = f"/blocks/kvtier/1/bench/model-1/{i % OBJECTS:064x}"
    request = f"{verb.upper()}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    print(f'url = "{origin}{path}?{query}&X-Amz-Signature={mac(key, text).hex()}"')
    print(f'upload-file = "{file}"' if verb == "put" else 'output = "/dev/null"')
