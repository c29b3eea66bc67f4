"""The counters are text that Prometheus reads."""

import re

from mttl.serving.metrics import ServerMetrics

SAMPLE = re.compile(
    r'[a-z_]+(\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="(\\.|[^"\\\n])*")*\})? [0-9.e+-]+'
)


def test_the_text_has_the_format() -> None:
    server_metrics = ServerMetrics()
    server_metrics.add_request('a "b"\\\n', 200, 0.2)
    server_metrics.add_request("", 404, 0.001)
    server_metrics.add_request("", 404, 0.001)
    server_metrics.add_tokens(prompt=3, answer=5)
    server_metrics.add_tokens(answer=1)
    server_metrics.add_batch(7)
    text = server_metrics.text(4)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines)
    assert 'mttl_requests_total{model="a \\"b\\"\\\\\\n",status="200"} 1' in lines
    assert 'mttl_requests_total{model="",status="404"} 2' in lines
    assert 'mttl_tokens_total{kind="answer"} 6' in lines
    assert "mttl_request_seconds_count 3" in lines
    assert 'mttl_batch_answers_bucket{le="4"} 0' in lines
    assert 'mttl_batch_answers_bucket{le="8"} 1' in lines
    assert "mttl_waiting_answers 4" in lines
    named = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named)) == 5
