// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Price publications. Only the newest time of each provider is stored; the prices are in the events.
interface IAskRegistry {
    /// EIP-712 type `Ask`.
    struct Ask {
        uint32 modelId;
        uint32 sla;
        uint128 rateIn;
        uint128 rateOut;
    }

    /// Each quote replaces the provider's ask for its (modelId, sla); both rates 0 withdraws it; the others stand.
    event AsksPublished(uint32 indexed providerId, uint64 signedAt, Ask[] quotes);

    error StaleSnapshot(); // signedAt not newer than the latest
    error TooFarAhead(); // signedAt more than an hour ahead of the block
    error TooManyQuotes(); // over 64
    error QuotesNotAscending(); // (modelId, sla) must ascend strictly
    error UnknownProvider(); // signer is not registered
    error ProviderMismatch(); // signer operates another provider
    error InvalidSignature();
    error ZeroAddress();

    /// Publish a provider's asks. `quotes` must ascend strictly by (modelId, sla).
    /// @dev Sender: anyone with the operator's `AskSnapshot` signature, or the operator itself with an empty `sig`.
    /// Inside `relay` a publication that is not newer than the latest is a no-op without an event.
    function publish(uint32 providerId, uint64 signedAt, Ask[] calldata quotes, bytes calldata sig) external;

    /// `signedAt` of the provider's latest publication, or 0.
    function latestSignedAt(uint32 providerId) external view returns (uint64);
    /// The provider registry of this market.
    function providers() external view returns (address);
}
