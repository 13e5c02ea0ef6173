// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IAskRegistry} from "./interfaces/IAskRegistry.sol";
import {IProviderRegistry} from "./interfaces/IProviderRegistry.sol";
import {Relayed} from "./Relayed.sol";

/// Price publications of providers. Prices live in events only: the chain never has to read one.
contract AskRegistry is IAskRegistry, Relayed {
    bytes32 private constant ASK_TYPEHASH = keccak256("Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)");
    bytes32 private constant SNAPSHOT_TYPEHASH = keccak256(
        "AskSnapshot(uint32 providerId,uint64 signedAt,Ask[] quotes)Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)"
    );
    uint256 private constant MOST_QUOTES = 64;
    uint256 private constant MOST_AHEAD = 1 hours;

    IProviderRegistry private immutable _providers;
    mapping(uint32 => uint64) public latestSignedAt;

    constructor(address owner, address providerRegistry) Relayed(owner, "SVC Asks") {
        if (providerRegistry == address(0)) revert ZeroAddress();
        _providers = IProviderRegistry(providerRegistry);
    }

    function publish(uint32 providerId, uint64 signedAt, Ask[] calldata quotes, bytes calldata sig) external {
        if (quotes.length > MOST_QUOTES) revert TooManyQuotes();
        if (signedAt > block.timestamp + MOST_AHEAD) revert TooFarAhead();
        _requireAscending(quotes);

        address signer = _authoriser(_snapshotHash(providerId, signedAt, quotes), sig);
        if (signer == address(0)) revert InvalidSignature();
        uint32 signerId = _providers.providerIdOf(signer);
        if (signerId == 0) revert UnknownProvider();
        if (signerId != providerId) revert ProviderMismatch();

        if (signedAt <= latestSignedAt[providerId]) {
            // Among coalesced calls a newer publication may have come first: that is no fault of this one.
            if (_insideRelay()) return;
            revert StaleSnapshot();
        }
        latestSignedAt[providerId] = signedAt;
        emit AsksPublished(providerId, signedAt, quotes);
    }

    function providers() external view returns (address) {
        return address(_providers);
    }

    /// Require strictly ascending pairs of (modelId, sla). One pass finds every duplicate, whatever the sender wrote.
    function _requireAscending(Ask[] calldata quotes) private pure {
        uint256 least = 0; // the next pair must be at least this
        for (uint256 i = 0; i < quotes.length; ++i) {
            uint256 pair = _pair(quotes[i]);
            if (pair < least) revert QuotesNotAscending();
            least = pair + 1;
        }
    }

    function _pair(Ask calldata ask) private pure returns (uint256) {
        return uint256(ask.modelId) << 32 | ask.sla;
    }

    function _snapshotHash(uint32 providerId, uint64 signedAt, Ask[] calldata quotes) private pure returns (bytes32) {
        bytes32[] memory hashes = new bytes32[](quotes.length);
        for (uint256 i = 0; i < quotes.length; ++i) {
            hashes[i] = keccak256(abi.encode(ASK_TYPEHASH, quotes[i]));
        }
        return keccak256(abi.encode(SNAPSHOT_TYPEHASH, providerId, signedAt, keccak256(abi.encodePacked(hashes))));
    }
}
