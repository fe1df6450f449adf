"""The suite for pytest, by command line or by class.

``pytest --pyargs kvconform.conformance.suite --kvc-target=TARGET`` gives a test for each rule. So
does a class in a test file of one's own::

    from kvconform.conformance.suite import ConnectorConformance


    class TestMine(ConnectorConformance):
        target = "my_package.kv:Connector"
"""

from kvconform.conformance.suite.connector import ConnectorConformance

__all__ = ["ConnectorConformance"]
