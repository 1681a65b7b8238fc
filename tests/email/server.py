"""SMTP server for tests: prints the emails it receives.

server.py MODE CERTIFICATE KEY, where MODE is `starttls` or `tls` (both require a password) or `none` (without a password).
The first line is the port; each email is printed as a line of JSON.
"""

import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

USER, PASSWORD = b"kafleet", b"mail-secret"


class RecordingHandler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("refused@"):
            return "550 5.1.1 nobody of that name"
        if address.startswith("busy@"):
            return "451 4.3.0 come again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        kept = {
            "envelope": [envelope.mail_from, envelope.rcpt_tos],
            "encrypted": session.ssl is not None,
            "headers": {name.lower(): str(value) for name, value in mail.items()},
            "body": mail.get_content(),
        }
        print(json.dumps(kept), flush=True)
        return "250 kept"


def knows(server, session, envelope, mechanism, data):
    # Not handled: aiosmtpd verifies the credentials itself.
    return AuthResult(success=(data.login, data.password) == (USER, PASSWORD), handled=False)


async def main(mode, certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    private = {"auth_required": True, "authenticator": knows}
    options = {
        "starttls": {"tls_context": context, "require_starttls": True, **private},
        "tls": {"auth_require_tls": False, **private},
        "none": {},
    }[mode]
    made = lambda: SMTP(RecordingHandler(), hostname="localhost", enable_SMTPUTF8=True, **options)
    server = await asyncio.get_running_loop().create_server(
        made, "127.0.0.1", 0, ssl=context if mode == "tls" else None
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
