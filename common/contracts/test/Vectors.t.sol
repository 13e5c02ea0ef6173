// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Quotes} from "../src/Quotes.sol";
import {Signatures} from "../src/Signatures.sol";
import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

/// The vectors that the Python and JavaScript implementations also read. Checks the helpers of the other tests, too.
contract VectorsTest is World {
    string private _json;
    string private _at; // the current case, like ".cases[3]"

    function test_quotes_and_settlements_agree() public {
        uint256 count = open("quotes");
        for (uint256 i = 0; i < count; ++i) {
            turnTo(i);
            uint128 rateIn = uint128(number(".rate_in"));
            uint128 rateOut = uint128(number(".rate_out"));
            uint32 unitsIn = uint32(number(".units_in"));
            uint256 cap = Quotes.price(rateIn, rateOut, unitsIn, uint32(number(".units_out")));
            if (has(".refused")) {
                bool overflow = equal(text(".refused"), "cap_overflow");
                vm.assertTrue(overflow || equal(text(".refused"), "too_many_units"), text(".refused"));
                vm.assertTrue(overflow == (cap > type(uint128).max), name());
                vm.assertTrue(overflow != (number(".completion_tok") > number(".units_out")), name());
                continue;
            }
            uint16 feeBps = uint16(number(".fee_bps"));
            uint128 gasFee = uint128(number(".gas_fee"));
            uint256 amount = Quotes.total(cap, feeBps, gasFee);
            uint256 cost = Quotes.price(rateIn, rateOut, unitsIn, uint32(number(".completion_tok")));
            uint256 share = Quotes.fee(cost, feeBps) + gasFee;
            vm.assertEq(cap, number(".cap"), name());
            vm.assertEq(Quotes.fee(cap, feeBps), number(".fee"), name());
            vm.assertEq(amount, number(".amount"), name());
            vm.assertEq(cost, number(".provider"), name());
            vm.assertEq(share, number(".treasury"), name());
            vm.assertEq(amount - cost - share, number(".owner"), name());
        }
    }

    function test_job_ids_agree() public {
        uint256 count = open("job_id");
        for (uint256 i = 0; i < count; ++i) {
            turnTo(i);
            vm.assertEq(idOf(account(".owner"), word(".c")), word(".job_id"), name());
        }
    }

    function test_signatures_are_accepted_and_refused_alike() public {
        uint256 count = open("signatures");
        for (uint256 i = 0; i < count; ++i) {
            turnTo(i);
            address expected = has(".refused") ? address(0) : account(".signer");
            bytes memory signature = vm.parseJsonBytes(_json, string.concat(_at, ".signature"));
            vm.assertTrue(this.signerOf(word(".digest"), signature) == expected, name());
        }
    }

    function test_types_hashes_and_digests_that_the_chain_checks_agree() public {
        uint256 count = open("eip712");
        uint256 checked = 0;
        for (uint256 i = 0; i < count; ++i) {
            turnTo(i);
            // No contract verifies signatures of this type.
            if (!has(".domain.verifyingContract") || equal(text(".domain_name"), "tabs")) continue;
            address verifier = account(".domain.verifyingContract");
            vm.assertEq(number(".domain.chainId"), block.chainid, name());
            bytes32 separator = domain(text(".domain.name"), text(".domain.version"), verifier);
            vm.assertEq(separator, word(".separator"), name());
            vm.assertEq(separatorOfTheContract(verifier), separator, name());
            vm.assertEq(keccak256(bytes(text(".type"))), word(".type_hash"), name());
            bytes32 structHash = hashOf(text(".primary_type"));
            vm.assertEq(structHash, word(".struct_hash"), name());
            vm.assertEq(digestOf(separator, structHash), word(".digest"), name());
            bytes memory signature = vm.parseJsonBytes(_json, string.concat(_at, ".signature"));
            vm.assertTrue(this.signerOf(word(".digest"), signature) == account(".signer"), name());
            ++checked;
        }
        vm.assertEq(checked, 27); // nine types, three messages each
    }

    /// Signatures are read from calldata.
    function signerOf(bytes32 digest, bytes calldata signature) external pure returns (address) {
        return Signatures.signerOf(digest, signature);
    }

    /// Deploy the contract of the case's domain at the case's address.
    function separatorOfTheContract(address verifier) private returns (bytes32) {
        string memory which = text(".domain_name");
        address ours = equal(which, "jobs")
            ? address(jobs)
            : equal(which, "providers") ? address(providers) : equal(which, "asks") ? address(asks) : address(token);
        vm.etch(verifier, ours.code);
        (bool done, bytes memory answer) = verifier.call(abi.encodeWithSignature("DOMAIN_SEPARATOR()"));
        vm.assertTrue(done);
        return abi.decode(answer, (bytes32));
    }

    function hashOf(string memory kind) private returns (bytes32) {
        if (equal(kind, "Order")) return orderHash(orderInHand());
        if (equal(kind, "AskSnapshot")) {
            uint64 signedAt = uint64(number(".message.signedAt"));
            return snapshotHash(uint32(number(".message.providerId")), signedAt, quotesInHand());
        }
        if (equal(kind, "Settle")) {
            bytes32 typeHash = keccak256("Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)");
            uint256 completionTok = number(".message.completionTok");
            return keccak256(abi.encode(typeHash, word(".message.jobId"), completionTok, number(".message.issuedAt")));
        }
        if (equal(kind, "SetIdentity")) {
            bytes32 typeHash = keccak256("SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)");
            bytes32 evidence = keccak256(vm.parseJsonBytes(_json, string.concat(_at, ".message.evidence")));
            return keccak256(abi.encode(typeHash, word(".message.boxKey"), evidence, number(".message.issuedAt")));
        }
        if (equal(kind, "RequestCapacity")) {
            bytes32 typeHash = keccak256("RequestCapacity(uint32 n,uint64 issuedAt)");
            return keccak256(abi.encode(typeHash, number(".message.n"), number(".message.issuedAt")));
        }
        if (equal(kind, "ReceiveWithAuthorization")) {
            return paymentHash(
                account(".message.from"),
                account(".message.to"),
                number(".message.value"),
                number(".message.validAfter"),
                number(".message.validBefore"),
                word(".message.nonce")
            );
        }
        bytes32 opHash = keccak256(bytes(string.concat(kind, "(bytes32 jobId,uint64 issuedAt)")));
        return keccak256(abi.encode(opHash, word(".message.jobId"), number(".message.issuedAt")));
    }

    function orderInHand() private view returns (IJobRegistry.Order memory) {
        return IJobRegistry.Order({
            c: word(".message.c"),
            modelId: uint32(number(".message.modelId")),
            slaSecs: uint32(number(".message.slaSecs")),
            rateIn: uint128(number(".message.rateIn")),
            rateOut: uint128(number(".message.rateOut")),
            unitsIn: uint32(number(".message.unitsIn")),
            unitsOut: uint32(number(".message.unitsOut")),
            designated: uint32(number(".message.designated")),
            expiresAt: uint64(number(".message.expiresAt"))
        });
    }

    function quotesInHand() private returns (IAskRegistry.Ask[] memory quotes) {
        uint256 count = length(string.concat(_at, ".message.quotes"));
        string memory outer = _at;
        quotes = new IAskRegistry.Ask[](count);
        for (uint256 i = 0; i < count; ++i) {
            _at = string.concat(outer, ".message.quotes[", vm.toString(i), "]");
            quotes[i] = IAskRegistry.Ask({
                modelId: uint32(number(".modelId")),
                sla: uint32(number(".sla")),
                rateIn: uint128(number(".rateIn")),
                rateOut: uint128(number(".rateOut"))
            });
        }
        _at = outer;
    }

    // --- reading ---

    function open(string memory file) private returns (uint256 count) {
        _json = vm.readFile(string.concat("../../tests/vectors/", file, ".json"));
        count = length(".cases");
        vm.assertTrue(count > 0, file);
    }

    function length(string memory array) private view returns (uint256 count) {
        while (vm.keyExistsJson(_json, string.concat(array, "[", vm.toString(count), "]"))) ++count;
    }

    function turnTo(uint256 index) private {
        _at = string.concat(".cases[", vm.toString(index), "]");
    }

    function name() private view returns (string memory) {
        return text(".name");
    }

    function has(string memory field) private view returns (bool) {
        return vm.keyExistsJson(_json, string.concat(_at, field));
    }

    function number(string memory field) private view returns (uint256) {
        return vm.parseJsonUint(_json, string.concat(_at, field));
    }

    function text(string memory field) private view returns (string memory) {
        return vm.parseJsonString(_json, string.concat(_at, field));
    }

    function word(string memory field) private view returns (bytes32) {
        return vm.parseJsonBytes32(_json, string.concat(_at, field));
    }

    function account(string memory field) private view returns (address) {
        return vm.parseJsonAddress(_json, string.concat(_at, field));
    }

    function equal(string memory left, string memory right) private pure returns (bool) {
        return keccak256(bytes(left)) == keccak256(bytes(right));
    }
}
