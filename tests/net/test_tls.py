"""TLS: both sides are verified before the secret is shown, and bad files are found at opening."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from websockets.exceptions import InvalidHandshake

import headrace
import headrace.sync
from headrace import TLS
from headrace.errors import TLSError
from headrace.net import Secured, Target, links, wire
from tests.net.certificates import Authority
from tests.net.support import SECRET, dial, hearing, speaking
from tests.support import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(tls: TLS) -> Secured:
    return Secured(tls, "127.0.0.1")


def client_of(tls: TLS | None, authority: Authority | None) -> ssl.SSLContext:
    """A client that may not be one of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority.file)
    if tls is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


# --- connections ---


def test_verified_sides_talk(authority: Authority) -> None:
    one, other = secured(authority.certify("one")), secured(authority.certify("other"))
    large = "x" * 1_000_000

    async def test() -> None:
        async with hearing(secured=one) as there, speaking(there.target, secured=other) as here:
            here.links.send("there", "hello")
            here.links.send("there", large)
            await until(lambda: there.heard == ["hello", large], "both messages")
            there.outboxes[0].put(large)
            await until(lambda: here.heard == [f"there: {large}"], "the answer")
            (link,) = there.listener.connections
            assert link.transport is not None
            cipher = link.transport.underlying_transport.get_extra_info("cipher")
            assert cipher[1] == "TLSv1.3"

    asyncio.run(test())


def test_who_does_not_speak_tls_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with hearing(secured=secured(authority.certify())) as there:
            plain = Target(there.target.host, there.target.port, SECRET, tls=False)
            for _ in range(3):
                with pytest.raises((InvalidHandshake, OSError)):
                    await dial(plain)
            assert there.listener.statistics().refused == 3
            assert there.heard == []
            async with dial(there.target, tls=client_of(authority.certify("x"), authority)) as good:
                await good.send(b"hello")
                await until(lambda: there.heard == ["hello"], "the message")

    asyncio.run(test())
    said = "a connection is refused: it does not speak TLS"
    assert [record.getMessage() for record in caplog.records].count(said) == 1, "once a minute"


def test_a_refusal_is_written_down_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    complaints = wire.Complaints(logging.getLogger("headrace.net"))
    for now_s, times in ((0.0, 1), (59.9, 1), (60.0, 2)):
        complaints.say("no", now_s)
        assert len(caplog.records) == times


def test_who_is_not_certified_by_the_authority_is_refused(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = Authority(tmp_path / "elsewhere", "other")

    async def test() -> None:
        async with hearing(secured=secured(authority.certify())) as there:
            for tls in (other.certify("stranger"), None, authority.certify("late", expired=True)):
                with pytest.raises((InvalidHandshake, OSError)):
                    async with dial(there.target, tls=client_of(tls, authority)) as connection:
                        await connection.recv()
            assert there.listener.statistics().refused == 3
            assert there.heard == []

    asyncio.run(test())
    assert "its certificate is not trusted: unable to get local issuer" in caplog.text
    assert "it shows no certificate" in caplog.text
    assert "its certificate is not trusted: certificate has expired" in caplog.text


def test_who_is_dialled_and_not_trusted_never_sees_the_secret(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "REDIAL_S", 0.01)
    (tmp_path / "elsewhere").mkdir()
    other = Authority(tmp_path / "elsewhere", "other")
    seen = bytearray()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.read(100_000))
        writer.close()

    async def offer(tls: ssl.SSLContext | None) -> None:
        server = await asyncio.start_server(read, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        target = Target("127.0.0.1", port, SECRET, tls=True)
        async with speaking(target, secured=secured(authority.certify())) as here:
            here.links.send("stranger" if tls else "plain", "hello")
            await until(lambda: here.links.statistics().dropped == 1, "its loss")
        server.close()

    async def test() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        stranger = other.certify("stranger")
        context.load_cert_chain(stranger.certificate, stranger.key)
        await offer(context)
        await offer(None)

    asyncio.run(test())
    assert seen, "the plain one has seen how TLS begins"
    assert SECRET.encode() not in seen
    assert "stranger is not spoken to: its certificate is not trusted" in caplog.text


def test_nobody_falls_back_to_what_is_not_encrypted(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REDIAL_S", 0.01)
    mine = secured(authority.certify())

    async def test() -> None:
        async with hearing() as plain, hearing(secured=mine) as safe:
            async with speaking(plain.target, secured=mine) as here:
                here.links.send("plain", "hello")
                await until(lambda: here.links.statistics().refused, "the refusal")
            async with speaking(safe.target) as here:
                here.links.send("safe", "hello")
                await until(lambda: here.links.statistics().refused, "the refusal")
            assert plain.heard == safe.heard == []
            assert plain.listener.statistics().refused == 0, "nobody has knocked"

    asyncio.run(test())
    assert "plain listens without TLS and is not spoken to" in caplog.text
    assert "safe takes connections with TLS only; open the log here with tls=" in caplog.text


def test_without_an_authority_who_dials_is_known_by_the_secret_alone(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # the machine's authorities
    given = authority.certify()
    mine = secured(TLS(certificate=given.certificate, key=given.key))

    async def test() -> None:
        async with hearing(secured=mine) as there:
            async with speaking(there.target, secured=mine) as here:
                here.links.send("there", "hello")
                await until(lambda: there.heard == ["hello"], "the message")
            async with dial(there.target, tls=client_of(None, authority)) as connection:
                await connection.send(b"without a certificate")
                await until(lambda: len(there.heard) == 2, "the message")
            with pytest.raises(InvalidHandshake):
                await dial(there.target, "wrong", tls=client_of(None, authority))

    asyncio.run(test())


# --- files ---


def refused(tmp_path: Path, tls: TLS) -> str:
    """What opening a log says to such files; nothing is made."""

    async def test() -> None:
        async with headrace.open(tmp_path / "data", tls=tls):
            pass

    with pytest.raises(TLSError) as error:
        asyncio.run(test())
    assert not (tmp_path / "data").exists(), "nothing is made before the files are read"
    return str(error.value)


def test_files_that_are_no_certificate_and_key_are_refused_at_opening(
    tmp_path: Path, authority: Authority
) -> None:
    one, other = authority.certify("one"), authority.certify("other")
    nonsense = tmp_path / "nonsense"
    nonsense.touch(mode=0o600)
    nonsense.write_text("nonsense")
    missing = tmp_path / "missing"

    good = {"certificate": one.certificate, "key": one.key, "authority": authority.file}

    def said(**files: object) -> str:
        return refused(tmp_path, TLS(**{name: str(file) for name, file in (good | files).items()}))

    for told in (said(certificate=missing), said(key=missing), said(authority=missing)):
        assert f"{missing} cannot be read" in told
    assert f"the key {other.key} does not belong to" in said(key=other.key)
    for told in (said(certificate=nonsense), said(key=nonsense)):
        assert f"{nonsense}" in told
        assert "in PEM" in told
    assert f"{nonsense} holds no certificate of an authority" in said(authority=nonsense)
    assert "cannot be read" in said(key=tmp_path)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, authority: Authority
) -> None:
    assert "is encrypted" in refused(tmp_path, authority.certify(password=b"sesame"))


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602])
def test_a_key_that_is_open_to_others_is_refused(
    tmp_path: Path, authority: Authority, mode: int
) -> None:
    tls = authority.certify()
    Path(tls.key).chmod(mode)
    told = refused(tmp_path, tls)
    assert f"mode {mode:03o}" in told
    assert f"chmod 600 {tls.key}" in told
    Path(tls.key).chmod(0o640)  # a group that was given it
    secured(tls)


def test_a_certificate_that_others_would_refuse_is_refused_at_opening(
    tmp_path: Path, authority: Authority
) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = Authority(tmp_path / "elsewhere", "other")
    mine = authority.certify()
    foreign = TLS(certificate=mine.certificate, key=mine.key, authority=other.file)
    alone = TLS(certificate=mine.certificate, key=mine.key)
    assert "certificate has expired" in refused(tmp_path, authority.certify("old", expired=True))
    for tls in (foreign, alone):
        assert "not trusted: unable to get local issuer" in refused(tmp_path, tls)
    elsewhere = refused(tmp_path, authority.certify("elsewhere", address="192.0.2.7"))
    assert "who dial 127.0.0.1" in elsewhere
    assert "IP address mismatch" in elsewhere


def test_scripts_open_with_tls_too(tmp_path: Path, authority: Authority) -> None:
    with headrace.sync.open(tmp_path / "data", tls=authority.certify()) as hr:
        hr.create_stream("orders", ["orders.>"])
        with hr.session("w") as session:
            session.subscribe("$share/g/orders.>")
            hr.publish("orders.1", b"hello")
            assert next(iter(session)).value == b"hello"
