// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC3009} from "@openzeppelin/contracts/token/ERC20/extensions/draft-ERC3009.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";

/// A payment token for local chains. Behaves like the large dollar tokens: six decimals, EIP-3009, an issuer that
/// can stop everything or shut one account out.
contract DevToken is ERC3009, Ownable, Pausable {
    mapping(address => bool) public blacklisted;

    event Blacklisted(address indexed account, bool blacklisted);

    error AccountBlacklisted(address account);

    constructor(address owner) ERC20("Dev Dollar", "DEVUSD") EIP712("Dev Dollar", "1") Ownable(owner) {}

    function mint(address to, uint256 amount) external onlyOwner {
        _mint(to, amount);
    }

    function setBlacklisted(address account, bool refused) external onlyOwner {
        blacklisted[account] = refused;
        emit Blacklisted(account, refused);
    }

    function pause() external onlyOwner {
        _pause();
    }

    function unpause() external onlyOwner {
        _unpause();
    }

    function DOMAIN_SEPARATOR() external view returns (bytes32) {
        return _domainSeparatorV4();
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }

    function _update(address from, address to, uint256 value) internal virtual override whenNotPaused {
        if (blacklisted[from]) revert AccountBlacklisted(from);
        if (blacklisted[to]) revert AccountBlacklisted(to);
        super._update(from, to, value);
    }
}
