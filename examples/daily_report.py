"""Days as epochs: a report is made of a whole day, or not at all.

    python examples/daily_report.py ./data

The publisher says when a day is complete.  Whoever reports sees it then, whole, and its report and
its progress are one commit: a program that dies in between makes the same report again, once.
"""

import asyncio
import sys

import pyarrow as pa
import pyarrow.compute as pc

import headrace

DAYS = 3


async def publish(hr: headrace.Headrace) -> None:
    async with hr.epoch_publisher("sales", "shop") as shop:
        for day in range(shop.frontier, DAYS):  # where its source resumes
            amounts = [str(100 * day + sale).encode() for sale in range(10)]
            table = pa.table(
                {"subject": ["sales.shop"] * 10, "value": pa.array(amounts, pa.binary())}
            )
            await shop.append(day, table.slice(0, 5))
            await shop.append(day, table.slice(5), advance_to=day + 1)  # this is all of the day


async def report(hr: headrace.Headrace) -> None:
    async with hr.epochs("sales", name="report", start="earliest", until=DAYS) as epochs:
        async for epoch in epochs:
            table = await epoch.table()
            total = pc.sum(pc.cast(pc.cast(table["value"], pa.string()), pa.int64())).as_py()
            async with epoch.transaction() as tx:
                tx.publish(f"reports.{epoch.time}", f"{epoch.rows} sales, {total} in all".encode())


async def main(catalog: str) -> None:
    async with headrace.open(catalog) as hr:
        await hr.create_stream("sales", subjects=["sales.>"], segments=2, epochs=headrace.Epochs())
        await hr.create_stream("reports", subjects=["reports.>"])
        await asyncio.gather(publish(hr), report(hr))
        async for batch in hr.read("reports"):
            for row in batch.to_pylist():
                print(row["subject"], row["value"].decode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
