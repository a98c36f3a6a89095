"""Write a Spark frame to a topic of an in-process cluster, read it back and count: python examples/spark_batch.py"""

from __future__ import annotations

import rocketcore as rmq
from rocketcore.spark import local_session


def main() -> None:
    with rmq.LocalCluster() as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("numbers", queues=4)
        spark = local_session("example")
        rows = spark.range(10_000).selectExpr(
            "concat('number ', id) as body", "string(id) as keys", "if(id % 2 = 0, 'even', 'odd') as tags"
        )
        target = {"nameServer": cluster.namesrv, "topic": "numbers"}
        rows.write.format("rocketmq").mode("append").options(**target).save()
        spark.read.format("rocketmq").options(**target).load().groupBy("tags").count().show()
        spark.stop()


if __name__ == "__main__":
    main()
