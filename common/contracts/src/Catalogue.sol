// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
import {Relayed} from "./Relayed.sol";

/// What may be ordered and on which terms: models, SLA windows, fees. An admin sets it. A job is held to the fees of
/// its post for good; its model must be enabled when it is posted and again when it is claimed.
abstract contract Catalogue is IJobRegistry, Relayed {
    /// No admin can ever charge more than this part of a job's cost, and than maxGasFee on top of it.
    uint16 public constant MAX_FEE_BPS = 2000;
    uint32 internal constant LONGEST_SLA = 86_400;
    uint256 private constant LONGEST_NAME = 256;

    struct Fees {
        uint16 feeBps;
        uint128 gasFee;
    }

    uint128 public immutable maxGasFee;
    Fees public fees;
    mapping(uint32 => bool) public modelEnabled;
    mapping(uint32 => bool) public slaAllowed;

    constructor(uint128 highestGasFee) {
        maxGasFee = highestGasFee;
    }

    function setModel(
        uint32 modelId,
        string calldata name,
        bool enabled,
        string calldata ownedBy,
        string calldata paramsSchema
    ) external onlyOwner {
        if (modelId == 0 || bytes(name).length == 0 || bytes(name).length > LONGEST_NAME) revert InvalidModel();
        modelEnabled[modelId] = enabled;
        emit ModelSet(modelId, name, enabled, ownedBy, paramsSchema);
    }

    function setSla(uint32 slaSecs, bool allowed) external onlyOwner {
        if (slaSecs == 0 || slaSecs > LONGEST_SLA) revert InvalidSla();
        slaAllowed[slaSecs] = allowed;
        emit SlaSet(slaSecs, allowed);
    }

    /// For jobs posted from now on.
    function setFees(uint16 feeBps, uint128 gasFee) external onlyOwner {
        if (feeBps > MAX_FEE_BPS || gasFee > maxGasFee) revert FeeTooHigh();
        fees = Fees({feeBps: feeBps, gasFee: gasFee});
        emit FeesSet(feeBps, gasFee);
    }
}
