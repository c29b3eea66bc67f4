"""The counters are text that Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

from mttl.serving.metrics import ServerMetrics


def test_the_counters_are_read_as_they_were_added() -> None:
    server_metrics = ServerMetrics()
    server_metrics.add_request('a "b"\\\n', 200, 0.2)
    server_metrics.add_request("", 404, 0.001)
    server_metrics.add_request("", 404, 0.001)
    server_metrics.add_tokens(prompt=3, answer=5)
    server_metrics.add_tokens(answer=1)
    server_metrics.add_batch(7)
    families = [*text_string_to_metric_families(server_metrics.text(4))]
    found = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert len(families) == 5
    assert found["mttl_requests_total", 'a "b"\\\n', "200"] == 1
    assert found["mttl_requests_total", "", "404"] == 2
    assert found["mttl_tokens_total", "answer"] == 6
    assert found["mttl_request_seconds_count",] == 3
    assert found["mttl_batch_answers_bucket", "4.0"] == 0
    assert found["mttl_batch_answers_bucket", "8.0"] == 1
    assert found["mttl_waiting_answers",] == 4
