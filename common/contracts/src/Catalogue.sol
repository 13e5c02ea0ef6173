// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
import {Relayed} from "./Relayed.sol";

/// What may be ordered and on which terms: models, SLA windows, fees. An admin sets it; jobs read it once, when posted.
abstract contract Catalogue is IJobRegistry, Relayed {
    /// No admin can ever charge more than this part of a job's cap.
    uint16 public constant MAX_FEE_BPS = 2000;
    uint32 internal constant LONGEST_SLA = 86_400;
    uint256 private constant LONGEST_NAME = 256;

    /// Fees as they were at some time. A job keeps the id, not the terms: that spares each post a storage slot.
    struct Terms {
        uint16 id;
        uint16 feeBps;
        uint128 gasFee;
    }

    address public treasury;
    Terms internal _terms;
    mapping(uint16 => Terms) internal _termsOf;
    mapping(uint32 => bool) public modelEnabled;
    mapping(uint32 => bool) public slaAllowed;

    constructor(address firstTreasury) {
        _setTreasury(firstTreasury);
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

    /// For jobs posted from now on. Can be done 65,535 times.
    function setFees(uint16 feeBps, uint128 gasFee) external onlyOwner {
        if (feeBps > MAX_FEE_BPS) revert FeeTooHigh();
        uint16 id = _terms.id + 1;
        _terms = Terms({id: id, feeBps: feeBps, gasFee: gasFee});
        _termsOf[id] = _terms;
        emit FeesSet(feeBps, gasFee);
    }

    function setTreasury(address newTreasury) external onlyOwner {
        _setTreasury(newTreasury);
    }

    function fees() external view returns (uint16 feeBps, uint128 gasFee) {
        return (_terms.feeBps, _terms.gasFee);
    }

    function _setTreasury(address newTreasury) private {
        if (newTreasury == address(0)) revert ZeroAddress();
        treasury = newTreasury;
        emit TreasurySet(newTreasury);
    }
}
