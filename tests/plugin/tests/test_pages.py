from tensorstash_pages.pages import Pages

from tensorstash.protocols import StoreConfig
from tensorstash.testing import StoreSuite


class TestPages(StoreSuite):
    def config(self, directory: str) -> StoreConfig:
        return Pages()
