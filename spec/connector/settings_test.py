"""kv_connector_extra_config: what is taken, what is refused and how."""
import os
import tempfile
import unittest
from unittest import mock

import paths  # noqa: F401
from vllm_connector.settings import read_settings


class ReadSettings(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        for name in ("VLLM_HOST_IP", "BATON_KV_TOKEN", "BATON_TRANSFER_TOKEN"):
            os.environ.pop(name, None)

    def test_nothing_given(self):
        settings = read_settings({})
        self.assertEqual((settings.agent, settings.gateways, settings.backends), ({"host": "127.0.0.1"}, [], []))
        self.assertFalse(settings.allow_sources)

    def test_all_given(self):
        settings = read_settings({"gateway": ["127.0.0.1:29500", "localhost:29101"], "worker": "http://a:1", "host": "127.0.0.2",
                                  "backends": ["tcp", "shm"], "stall_ms": 7, "crc": True, "token": "s", "gateway_token": "g"})
        self.assertEqual(settings.gateways, [("127.0.0.1", 29500), ("127.0.0.1", 29101)])
        self.assertEqual(settings.agent, {"host": "127.0.0.2", "stall_ms": 7, "crc": True, "token": "s"})
        self.assertEqual((settings.worker, settings.backends, settings.gateway_token), ("http://a:1", ["tcp", "shm"], "g"))

    def test_the_environment_fills_in(self):
        os.environ.update(VLLM_HOST_IP="127.0.0.3", BATON_KV_TOKEN="s", BATON_TRANSFER_TOKEN="g")
        settings = read_settings({})
        self.assertEqual(settings.agent, {"host": "127.0.0.3", "token": "s"})
        self.assertEqual(settings.gateway_token, "g")

    def test_agents_ask_each_other_for_the_gateways_token(self):
        """Beyond one host agents need one, and where the gateway has one every engine knows it."""
        self.assertEqual(read_settings({"gateway_token": "g"}).agent["token"], "g")
        self.assertEqual(read_settings({"gateway_token": "g", "token": "s"}).agent["token"], "s")
        with tempfile.NamedTemporaryFile("w", suffix="token") as file:
            file.write(" new\n\nold\n")
            file.flush()
            self.assertEqual(read_settings({"token_file": file.name}).agent["token"], "new\nold")
            self.assertEqual(read_settings({"token_file": file.name}).gateway_token, "new\nold")
        for path in ("no/such/file", os.devnull):
            with self.assertRaisesRegex(ValueError, path):
                read_settings({"token_file": path})
        os.environ["BATON_TRANSFER_TOKEN"] = "e"
        self.assertEqual(read_settings({}).agent["token"], "e")

    def test_an_agent_may_be_open_to_other_hosts(self):
        self.assertNotIn("allow_remote", read_settings({}).agent)
        self.assertIs(read_settings({"allow_remote": True}).agent["allow_remote"], True)

    def test_what_is_wrong_is_told(self):
        for extra, why in (({"gatway": "a:1"}, "has no \"gatway\""), ({"gateway": "nowhere", "worker": "w"}, "not host:port"),
                           ({"gateway": "127.0.0.1:0", "worker": "w"}, "not host:port"),
                           ({"gateway": "127.0.0.1:1"}, "needs \"worker\""), ({"backends": ["rdma"]}, "backends names \"rdma\""),
                           ({"stall_ms": "7"}, "\"stall_ms\" can't be '7'"), ({"stall_ms": True}, "can't be True"),
                           ({"dead_ms": -1}, "can't be -1"), ({"host": "no.such.host.invalid"}, "can't be resolved")):
            with self.assertRaisesRegex(ValueError, why):
                read_settings(extra)


if __name__ == "__main__":
    unittest.main()
