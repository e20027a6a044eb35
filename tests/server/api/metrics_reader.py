"""The metrics page, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from tests.server.api.api_client import ApiClient


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"the lines of {family.name} are not together"
            self.families[family.name] = family
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, *sorted(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all samples that have these labels."""
        wanted = set(labels.items())
        return sum(value for (key, *found), value in self.samples.items() if key == name and wanted <= set(found))


def scrape(api: ApiClient) -> Metrics:
    response = api.request("GET", "/metrics")
    assert response.status == 200, response.text
    return Metrics(response.text)
