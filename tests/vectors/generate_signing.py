"""Make the vectors of signatures, typed data, prices, transactions and strict scalars.

    python -m tests.vectors.generate_signing

Uses nothing from `common`. Hashes and signatures come from eth-account and eth-keys, prices from exact fractions. The
vectors are therefore independent evidence about `common`.
"""

from tests.vectors.signing import address_books, prices, scalars, signatures, transactions, typed_data
from tests.vectors.vector_file import FOLDER, text_of


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "eip712.json": text_of("Every signed type: in its domain, hashed and signed (RFC 6979).", typed_data.cases()),
        "signatures.json": text_of("65-byte signatures and who made them.", signatures.cases()),
        "job_id.json": text_of("keccak256 of owner (20 bytes) and c (32 bytes).", prices.job_ids()),
        "quotes.json": text_of(
            "What an order costs at most, and how a settle shares out what was collected.", prices.quotes()
        ),
        "transactions.json": text_of(
            "EIP-1559 transactions signed by one key (RFC 6979). data_repeated: how often data stands in a"
            " row; raw is null where it would be long, and the hash tells.",
            transactions.cases(),
        ),
        "scalars.json": text_of(
            "Values as JSON texts, and what a strict reader takes them for: integers in decimal, bytes in"
            " bare hex. limit: the bits, the exact length or the greatest length.",
            scalars.cases(),
        ),
        "address_book.json": text_of(
            "Address books as JSON texts; a refused one with the key at fault.", address_books.cases()
        ),
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
