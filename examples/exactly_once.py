"""Exactly once from one stream to another: output and ack are one commit.

    python examples/exactly_once.py ./data

Orders become invoices.  The program is stopped in the middle as often as you like and started
again: each order has one invoice, and none is missing.
"""

import asyncio
import sys

import headrace

ORDERS = 1_000


async def main(catalog: str) -> None:
    async with headrace.open(catalog) as hr:
        await hr.create_stream("orders", subjects=["orders.>"], partitions=4)
        await hr.create_stream("invoices", subjects=["invoices.>"])
        await hr.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        for number in range(ORDERS):
            # A producer that repeats itself writes nothing twice.
            await hr.publish(f"orders.{number}", b"12 apples", producer="shop", sequence=number + 1)
        async with hr.join("orders", "billing", member="m1") as member:
            left = (await hr.groups.lag("orders/billing")).events

            async def bill(delivery: headrace.Delivery) -> None:
                nonlocal left
                number = delivery.subject.split(".")[1]
                async with delivery.transaction() as tx:  # both, or neither
                    tx.publish(f"invoices.{number}", b"please pay for " + delivery.value)
                left -= 1
                if not left:
                    await member.close()

            if left:
                await member.consume(bill, concurrency=64)
        subjects = [
            subject
            async for batch in hr.read("invoices")
            for subject in batch.column("subject").to_pylist()
        ]
        print(f"{len(subjects)} invoices, {len(set(subjects))} of them different")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
