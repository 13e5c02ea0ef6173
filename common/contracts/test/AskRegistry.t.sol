// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {World} from "./World.sol";

contract AskRegistryTest is World {
    function test_publish_by_signature_emits_the_quotes_and_remembers_the_time() public {
        IAskRegistry.Ask[] memory quotes = quotesOf(3);
        vm.expectEmit(address(asks));
        emit IAskRegistry.AsksPublished(providerId, uint64(START), quotes);
        vm.prank(stranger);
        asks.publish(providerId, uint64(START), quotes, askSig(PROVIDER_KEY, providerId, uint64(START), quotes));
        vm.assertEq(asks.latestSignedAt(providerId), START);
        vm.assertEq(asks.latestSignedAt(rivalId), 0);
        vm.assertEq(asks.providers(), address(providers));
    }

    function test_publish_by_the_operator_itself_needs_no_signature() public {
        vm.prank(operator);
        asks.publish(providerId, uint64(START), new IAskRegistry.Ask[](0), "");
        vm.assertEq(asks.latestSignedAt(providerId), START);
    }

    function test_publish_takes_64_quotes_and_no_more() public {
        vm.startPrank(operator);
        asks.publish(providerId, uint64(START), quotesOf(64), "");
        IAskRegistry.Ask[] memory quotes = quotesOf(65);
        vm.expectRevert(IAskRegistry.TooManyQuotes.selector);
        asks.publish(providerId, uint64(START + 1), quotes, "");
    }

    function test_publish_refuses_pairs_out_of_order_or_given_twice(uint256 seed, uint8 length) public {
        IAskRegistry.Ask[] memory quotes = quotesOf(bound(length, 2, 64));
        vm.startPrank(operator);
        asks.publish(providerId, uint64(START), quotes, "");
        uint256 place = seed % (quotes.length - 1);
        if (seed >> 255 == 0) (quotes[place], quotes[place + 1]) = (quotes[place + 1], quotes[place]);
        else (quotes[place + 1].modelId, quotes[place + 1].sla) = (quotes[place].modelId, quotes[place].sla);
        vm.expectRevert(IAskRegistry.QuotesNotAscending.selector);
        asks.publish(providerId, uint64(START + 1), quotes, "");
    }

    function test_publish_is_strictly_newer_and_at_most_an_hour_ahead() public {
        IAskRegistry.Ask[] memory quotes = quotesOf(1);
        vm.startPrank(operator);
        vm.expectRevert(IAskRegistry.TooFarAhead.selector);
        asks.publish(providerId, uint64(START + 3601), quotes, "");
        asks.publish(providerId, uint64(START + 3600), quotes, "");
        vm.expectRevert(IAskRegistry.StaleSnapshot.selector);
        asks.publish(providerId, uint64(START + 3600), quotes, "");
    }

    function test_publish_refusals_by_name() public {
        IAskRegistry.Ask[] memory quotes = quotesOf(2);
        bytes memory good = askSig(PROVIDER_KEY, providerId, uint64(START), quotes);
        bytes[] memory wrong = malformed(good);
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.expectRevert(IAskRegistry.InvalidSignature.selector);
            asks.publish(providerId, uint64(START), quotes, wrong[i]);
        }
        bytes memory foreign = askSig(RIVAL_KEY, providerId, uint64(START), quotes);
        vm.expectRevert(IAskRegistry.ProviderMismatch.selector);
        asks.publish(providerId, uint64(START), quotes, foreign);
        quotes[0].rateIn += 1;
        vm.expectRevert(IAskRegistry.UnknownProvider.selector);
        asks.publish(providerId, uint64(START), quotes, good);
        vm.expectRevert(IAskRegistry.UnknownProvider.selector);
        asks.publish(providerId, uint64(START), quotes, "");
    }

    function test_stale_publication_inside_a_relay_is_no_fault_and_leaves_no_event() public {
        IAskRegistry.Ask[] memory quotes = quotesOf(1);
        bytes[] memory calls = new bytes[](3);
        calls[0] = publication(uint64(START + 2), quotes);
        calls[1] = publication(uint64(START + 1), quotes);
        calls[2] = publication(uint64(START + 3), quotes);
        vm.recordLogs();
        vm.prank(relayer);
        asks.relay(calls);
        vm.assertEq(vm.getRecordedLogs().length, 2);
        vm.assertEq(asks.latestSignedAt(providerId), START + 3);

        // and the relay's mark is cleared: the same publication sent alone is rejected
        vm.expectRevert(IAskRegistry.StaleSnapshot.selector);
        asks.publish(
            providerId, uint64(START + 1), quotes, askSig(PROVIDER_KEY, providerId, uint64(START + 1), quotes)
        );
    }

    function test_unsigned_publication_inside_a_relay_is_refused_even_when_stale() public {
        vm.prank(operator);
        asks.publish(providerId, uint64(START), quotesOf(1), "");
        bytes[] memory calls = new bytes[](1);
        calls[0] = abi.encodeCall(asks.publish, (providerId, uint64(START - 1), quotesOf(1), new bytes(65)));
        vm.recordLogs();
        vm.prank(relayer);
        asks.relay(calls);
        vm.assertEq(vm.getRecordedLogs().length, 1);
    }

    function publication(uint64 signedAt, IAskRegistry.Ask[] memory quotes) private view returns (bytes memory) {
        bytes memory sig = askSig(PROVIDER_KEY, providerId, signedAt, quotes);
        return abi.encodeCall(asks.publish, (providerId, signedAt, quotes, sig));
    }

    function quotesOf(uint256 n) private pure returns (IAskRegistry.Ask[] memory quotes) {
        quotes = new IAskRegistry.Ask[](n);
        for (uint32 i = 0; i < n; ++i) {
            quotes[i] = IAskRegistry.Ask({modelId: 1 + i / 2, sla: i % 2 == 0 ? 3600 : 86_400, rateIn: i, rateOut: 9});
        }
    }

    function askSig(uint256 key, uint32 id, uint64 signedAt, IAskRegistry.Ask[] memory quotes)
        private
        view
        returns (bytes memory)
    {
        return sign(key, digestOf(domain("SVC Asks", "2", address(asks)), snapshotHash(id, signedAt, quotes)));
    }
}
