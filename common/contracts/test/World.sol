// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {AskRegistry} from "../src/AskRegistry.sol";
import {DevToken} from "../src/DevToken.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {ProviderRegistry} from "../src/ProviderRegistry.sol";
import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {Check} from "./Check.sol";

/// Base with a market of one model, one SLA, a rich client and two listed providers. The test contract is the admin.
abstract contract World is Check {
    struct Draft {
        IJobRegistry.Order order;
        address owner;
        uint256 amount;
        string taskCid;
        bytes orderSig;
        bytes paySig;
    }

    uint256 internal constant CLIENT_KEY = 0xC11E27;
    uint256 internal constant PROVIDER_KEY = 0x920001;
    uint256 internal constant RIVAL_KEY = 0x920002;
    uint256 internal constant STRANGER_KEY = 0x57;
    uint32 internal constant MODEL = 7;
    uint32 internal constant SLA = 3600;
    uint16 internal constant FEE_BPS = 250;
    uint128 internal constant GAS_FEE = 1500;
    uint128 internal constant MOST_GAS_FEE = 1e9;
    uint96 internal constant POINT_PRICE = 300; // the gas fee alone earns a settled job its five points
    uint256 internal constant START = 1_800_000_000;
    string internal constant CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";

    address internal immutable client = vm.addr(CLIENT_KEY);
    address internal immutable operator = vm.addr(PROVIDER_KEY);
    address internal immutable rival = vm.addr(RIVAL_KEY);
    address internal immutable stranger = vm.addr(STRANGER_KEY);
    address internal constant relayer = address(0x4E1A7E4);
    address internal constant treasury = address(0x74EA5);

    DevToken internal token;
    ProviderRegistry internal providers;
    JobRegistry internal jobs;
    AskRegistry internal asks;
    uint32 internal providerId;
    uint32 internal rivalId;
    mapping(bytes32 => IJobRegistry.Posted) private _terms;

    function setUp() public virtual {
        vm.warp(START);
        token = DevToken(makeToken());
        providers = new ProviderRegistry(address(this), POINT_PRICE);
        jobs = new JobRegistry(address(this), address(token), address(providers), treasury, MOST_GAS_FEE);
        asks = new AskRegistry(address(this), address(providers));
        providers.setJobRegistry(address(jobs));
        jobs.setModel(MODEL, "acme/word-mill-7b", true, "acme", "{}");
        jobs.setSla(SLA, true);
        jobs.setFees(FEE_BPS, GAS_FEE);
        jobs.setRelayer(relayer, true);
        providers.setRelayer(relayer, true);
        asks.setRelayer(relayer, true);
        token.mint(client, 1e18);
        providerId = enrol(operator);
        rivalId = enrol(rival);
    }

    bool private _isJobRegistry;

    /// Make the test contract the market's job registry, so that a test can call functions reserved for the registry.
    function becomeJobRegistry() internal {
        _isJobRegistry = true;
        providers.setJobRegistry(address(this));
    }

    /// Answer `providers()` and `escrowed()` like a job registry without claimed jobs.
    fallback(bytes calldata data) external returns (bytes memory) {
        if (_isJobRegistry && bytes4(data) == IJobRegistry.providers.selector) return abi.encode(providers);
        if (_isJobRegistry && bytes4(data) == IJobRegistry.escrowed.selector) return abi.encode(0);
        revert();
    }

    /// Tests with another token override this.
    function makeToken() internal virtual returns (address) {
        return address(new DevToken(address(this)));
    }

    function enrol(address account) internal returns (uint32 id) {
        vm.prank(account);
        id = providers.register();
        vm.prank(account);
        providers.requestCapacity(1000, uint64(time()) + 1, "");
        providers.setCeiling(id, 1000);
        providers.setListed(id, true);
        providers.setAllowAllModels(id, true);
    }

    // --- orders ---

    function orderOf(bytes32 c) internal view returns (IJobRegistry.Order memory) {
        return IJobRegistry.Order({
            c: c,
            modelId: MODEL,
            slaSecs: SLA,
            rateIn: 2_000_000,
            rateOut: 6_000_000,
            unitsIn: 1000,
            unitsOut: 4096,
            designated: 0,
            expiresAt: uint64(time() + 7200)
        });
    }

    function draft() internal view returns (Draft memory) {
        return draftOf("c");
    }

    function draftOf(bytes32 c) internal view returns (Draft memory) {
        return signed(orderOf(c));
    }

    function signed(IJobRegistry.Order memory order) internal view returns (Draft memory) {
        return signedFor(order, amountOf(order));
    }

    function signedFor(IJobRegistry.Order memory order, uint256 amount) internal view returns (Draft memory) {
        bytes memory paySig = sign(CLIENT_KEY, paymentDigest(client, amount, order.expiresAt, idOf(client, order.c)));
        return Draft(order, client, amount, CID, sign(CLIENT_KEY, orderDigest(order)), paySig);
    }

    function capOf(IJobRegistry.Order memory order) internal pure returns (uint256) {
        uint256 perMillion = uint256(order.rateIn) * order.unitsIn + uint256(order.rateOut) * order.unitsOut;
        return perMillion == 0 ? 1 : (perMillion + 999_999) / 1e6;
    }

    function amountOf(IJobRegistry.Order memory order) internal view returns (uint256) {
        (uint16 feeBps, uint128 gasFee) = jobs.fees();
        return capOf(order) + capOf(order) * feeBps / 10_000 + gasFee;
    }

    function idOf(address owner, bytes32 c) internal pure returns (bytes32) {
        return keccak256(bytes.concat(bytes20(owner), c));
    }

    // --- ops ---

    function post(Draft memory d) internal returns (bytes32) {
        return postAs(relayer, d);
    }

    function postAs(address sender, Draft memory d) internal returns (bytes32 jobId) {
        vm.prank(sender);
        jobId = jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
        if (jobId != 0) keep(d); // a post that was expected to be rejected returns 0
    }

    /// Store the terms that later calls need, with the current fees.
    function keep(Draft memory d) internal {
        (uint16 feeBps, uint128 gasFee) = jobs.fees();
        _terms[idOf(d.owner, d.order.c)] = IJobRegistry.Posted(d.order, d.owner, feeBps, gasFee);
    }

    /// A job that was never posted, with terms that match no job.
    function terms(bytes32 jobId) internal view returns (IJobRegistry.Posted memory) {
        return _terms[jobId];
    }

    function posted() internal returns (bytes32 jobId, Draft memory d) {
        d = draft();
        jobId = post(d);
    }

    function claim(bytes32 jobId, bytes memory paySig) internal {
        vm.prank(operator);
        jobs.claim(terms(jobId), 0, "", paySig);
    }

    function claimed() internal returns (bytes32 jobId, Draft memory d) {
        (jobId, d) = posted();
        claim(jobId, d.paySig);
    }

    function settle(bytes32 jobId, uint32 completionTok) internal {
        vm.prank(operator);
        jobs.settle(terms(jobId), completionTok, 0, CID, "");
    }

    function fail(bytes32 jobId) internal {
        vm.prank(operator);
        jobs.fail(terms(jobId), 0, "");
    }

    function cancel(bytes32 jobId) internal {
        vm.prank(client);
        jobs.cancel(terms(jobId), 0, "");
    }

    // --- signatures, from the texts of the signed types ---

    function sign(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    /// The other signature that ecrecover accepts for the same signer and digest.
    function highS(bytes memory signature) internal pure returns (bytes memory) {
        uint256 groupOrder = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        (bytes32 r, uint256 s) = abi.decode(signature, (bytes32, uint256));
        return abi.encodePacked(r, groupOrder - s, uint8(signature[64]) == 27 ? uint8(28) : uint8(27));
    }

    function withV(bytes memory signature, uint8 v) internal pure returns (bytes memory) {
        (bytes32 r, bytes32 s) = abi.decode(signature, (bytes32, bytes32));
        return abi.encodePacked(r, s, v);
    }

    /// Signatures that are rejected wherever a signature is required.
    function malformed(bytes memory good) internal pure returns (bytes[] memory wrong) {
        wrong = new bytes[](7);
        wrong[0] = highS(good);
        wrong[1] = withV(good, uint8(good[64]) - 27);
        wrong[2] = withV(good, uint8(good[64]) + 8);
        wrong[3] = bytes.concat(good, hex"00");
        wrong[4] = new bytes(64);
        for (uint256 i = 0; i < 64; ++i) {
            wrong[4][i] = good[i];
        }
        wrong[5] = new bytes(65);
        wrong[6] = hex"01";
    }

    function domain(string memory name, string memory version, address verifier) internal view returns (bytes32) {
        return keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256(bytes(name)),
                keccak256(bytes(version)),
                block.chainid,
                verifier
            )
        );
    }

    function digestOf(bytes32 separator, bytes32 structHash) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", separator, structHash));
    }

    function jobsDigest(bytes32 structHash) internal view returns (bytes32) {
        return digestOf(domain("SVC Jobs", "2", address(jobs)), structHash);
    }

    function orderDigest(IJobRegistry.Order memory order) internal view returns (bytes32) {
        return jobsDigest(orderHash(order));
    }

    function orderHash(IJobRegistry.Order memory order) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(
                keccak256(
                    "Order(bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt)"
                ),
                order
            )
        );
    }

    function paymentDigest(address from, uint256 value, uint64 expiresAt, bytes32 nonce)
        internal
        view
        returns (bytes32)
    {
        return digestOf(token.DOMAIN_SEPARATOR(), paymentHash(from, address(jobs), value, 0, expiresAt + 1, nonce));
    }

    function paymentHash(address from, address to, uint256 value, uint256 after_, uint256 before, bytes32 nonce)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(
            abi.encode(
                keccak256(
                    "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
                ),
                from,
                to,
                value,
                after_,
                before,
                nonce
            )
        );
    }

    /// `verb`: Claim, Fail or Cancel.
    function opSig(uint256 key, string memory verb, bytes32 jobId, uint64 issuedAt)
        internal
        view
        returns (bytes memory)
    {
        bytes32 typeHash = keccak256(bytes(string.concat(verb, "(bytes32 jobId,uint64 issuedAt)")));
        return sign(key, jobsDigest(keccak256(abi.encode(typeHash, jobId, issuedAt))));
    }

    function settleSig(uint256 key, bytes32 jobId, uint32 completionTok, uint64 issuedAt)
        internal
        view
        returns (bytes memory)
    {
        bytes32 typeHash = keccak256("Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)");
        return sign(key, jobsDigest(keccak256(abi.encode(typeHash, jobId, completionTok, issuedAt))));
    }

    function snapshotHash(uint32 id, uint64 signedAt, IAskRegistry.Ask[] memory quotes)
        internal
        pure
        returns (bytes32)
    {
        bytes memory hashes;
        for (uint256 i = 0; i < quotes.length; ++i) {
            bytes32 askType = keccak256("Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)");
            hashes = bytes.concat(hashes, keccak256(abi.encode(askType, quotes[i])));
        }
        bytes32 typeHash = keccak256(
            "AskSnapshot(uint32 providerId,uint64 signedAt,Ask[] quotes)Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)"
        );
        return keccak256(abi.encode(typeHash, id, signedAt, keccak256(hashes)));
    }

    function cancelAuthorization(uint256 key, bytes32 nonce) internal {
        bytes32 typeHash = keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");
        bytes32 structHash = keccak256(abi.encode(typeHash, vm.addr(key), nonce));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digestOf(token.DOMAIN_SEPARATOR(), structHash));
        token.cancelAuthorization(vm.addr(key), nonce, v, r, s);
    }

    function assertState(bytes32 jobId, IJobRegistry.State state, IJobRegistry.EndedBecause because) internal view {
        IJobRegistry.Job memory job = jobs.job(jobId);
        vm.assertEq(uint256(job.state), uint256(state), "state");
        vm.assertEq(uint256(job.endedBecause), uint256(because), "ended because");
    }
}
