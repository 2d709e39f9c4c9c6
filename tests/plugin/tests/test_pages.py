from tensorstash_pages.pages import Pages

from tensorstash.protocols import StoreConfig
from tensorstash.testing import StoreSuite


class TestPages(StoreSuite):
    refused = ({"budget": "plenty"}, {"budget": -1})

    def config(self, directory: str) -> StoreConfig:
        return Pages()

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Pages(budget=budget_bytes)
