// A buyer and a provider in one file, written from docs/protocol alone, over Go's standard
// library alone. Cryptography that the library lacks is at the end, by the page's formulas.
//
//	stranger buy          one job; prints its output
//	stranger buy --open   the same as an open bid, sealed to the escrow
//	stranger batch N      a batch of N lines
//	stranger provide      poll, claim, run and settle until killed
//
// It finds SVC_BASE_URL, SVC_PIN_GATEWAY, SVC_MODEL, SVC_INPUT, SVC_WALLET_KEY, SVC_ADDRESSES (the address book, as
// JSON) and, as a provider, SVC_BOX_KEY in its environment.
package main

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/bits"
	"mime/multipart"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

type object = map[string]any

var base, gateway, model = os.Getenv("SVC_BASE_URL"), os.Getenv("SVC_PIN_GATEWAY"), os.Getenv("SVC_MODEL")

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func now() int64 { return time.Now().Unix() }

func unhex(text string) []byte { return must(hex.DecodeString(strings.TrimPrefix(text, "0x"))) }

func hexed(raw []byte) string { return "0x" + hex.EncodeToString(raw) }

// number reads an integer that is a JSON number or a decimal string.
func number(value any) *big.Int {
	found, ok := new(big.Int).SetString(fmt.Sprint(value), 10)
	if !ok {
		panic(fmt.Errorf("%v is no integer", value))
	}
	return found
}

// --- HTTP ---

type answer struct {
	status int
	body   object
	raw    []byte
	again  bool
	after  time.Duration
}

func (a *answer) code() string {
	if a == nil {
		return ""
	}
	if reason, ok := a.body["reason"].(string); ok {
		return reason
	}
	failure, _ := a.body["error"].(object)
	code, _ := failure["code"].(string)
	return code
}

// once sends one request. It returns nil without an answer.
func once(method, path, token string, body any, headers ...string) *answer {
	var sent io.Reader
	kind := ""
	switch content := body.(type) {
	case nil:
	case *form:
		sent, kind = bytes.NewReader(content.bytes.Bytes()), content.kind
	default:
		sent, kind = bytes.NewReader(must(json.Marshal(body))), "application/json"
	}
	request := must(http.NewRequest(method, base+path, sent))
	if kind != "" {
		request.Header.Set("content-type", kind)
	}
	if token != "" {
		request.Header.Set("authorization", "Bearer "+token)
	}
	for at := 0; at+1 < len(headers); at += 2 {
		request.Header.Set(headers[at], headers[at+1])
	}
	// The library only retries a request if it can read the body again. Prevent that.
	request.GetBody = nil
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return nil
	}
	found := &answer{status: response.StatusCode, raw: raw, again: response.Header.Get("x-svc-retryable") == "true"}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	_ = decoder.Decode(&found.body)
	seconds, err := strconv.Atoi(response.Header.Get("retry-after"))
	if err == nil {
		found.after = time.Duration(seconds) * time.Second
	}
	return found
}

// ask retries requests that may succeed later, and panics when a request is rejected.
func ask(good int, method, path, token string, body any, headers ...string) object {
	for attempt := 0; ; attempt++ {
		found := once(method, path, token, body, headers...)
		if found != nil && found.status == good {
			return found.body
		}
		if attempt == 5 || (found != nil && !found.again) {
			panic(fmt.Errorf("%s %s: %s", method, path, described(found)))
		}
		pause(found, attempt)
	}
}

func pause(found *answer, attempt int) {
	wait := 250 * time.Millisecond << min(attempt, 5)
	if found != nil && found.after > wait {
		wait = found.after
	}
	time.Sleep(wait)
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func described(found *answer) string {
	if found == nil {
		return "no answer"
	}
	return fmt.Sprintf("%d %s", found.status, found.raw)
}

type form struct {
	bytes bytes.Buffer
	kind  string
}

// fetched returns a gateway's bytes for an id. They are untrusted until checked.
func fetched(cid string) []byte {
	for attempt := 0; attempt < 8; attempt++ {
		response, err := http.Get(gateway + "/ipfs/" + cid)
		if err == nil {
			raw, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil && response.StatusCode == 200 {
				return raw
			}
			if err == nil && response.StatusCode != 404 && response.StatusCode < 500 {
				break
			}
		}
		time.Sleep(1500 * time.Millisecond)
	}
	panic(fmt.Errorf("the gateway does not have %s", cid))
}

// --- signatures: EIP-712 ---

var typeOf = map[string]string{
	"Order": "Order(bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut," +
		"uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt)",
	"Claim":           "Claim(bytes32 jobId,uint64 issuedAt)",
	"Settle":          "Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)",
	"Fail":            "Fail(bytes32 jobId,uint64 issuedAt)",
	"SetIdentity":     "SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)",
	"RequestCapacity": "RequestCapacity(uint32 n,uint64 issuedAt)",
	"AskSnapshot": "AskSnapshot(uint32 providerId,uint64 signedAt,Ask[] quotes)" +
		"Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)",
	"Ask": "Ask(uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut)",
	"ReceiveWithAuthorization": "ReceiveWithAuthorization(address from,address to,uint256 value," +
		"uint256 validAfter,uint256 validBefore,bytes32 nonce)",
	"Release":    "Release(bytes32 jobId,bytes seedWrap,bytes32 ctHash,bytes32 responsePubkey,uint64 issuedAt)",
	"SvcSession": "SvcSession(address address,string nonce)",
	"ResultKey":  "ResultKey(string purpose)",
}

// word returns 32 bytes. Integers and addresses are padded on the left.
func word(value any) []byte {
	switch known := value.(type) {
	case []byte:
		return append(make([]byte, 32-len(known)), known...)
	case int64:
		return word(big.NewInt(known).Bytes())
	case int:
		return word(big.NewInt(int64(known)).Bytes())
	case *big.Int:
		return word(known.Bytes())
	}
	panic(fmt.Errorf("%T is no word", value))
}

func structHash(name string, words ...any) []byte {
	packed := [][]byte{keccak([]byte(typeOf[name]))}
	for _, each := range words {
		packed = append(packed, word(each))
	}
	return keccak(packed...)
}

type signer struct {
	chain   object
	secret  *big.Int
	address []byte
	token   string
}

func newSigner(chain object) *signer {
	secret := new(big.Int).SetBytes(unhex(os.Getenv("SVC_WALLET_KEY")))
	x, y := multiplied(secret, curveX, curveY)
	return &signer{chain: chain, secret: secret, address: keccak(word(x), word(y))[12:]}
}

func (s *signer) owner() string { return hexed(s.address) }

func (s *signer) chainID() []byte { return word(number(s.chain["chain_id"])) }

func (s *signer) contract(name string) []byte {
	return unhex(s.chain["contracts"].(object)[name].(string))
}

func (s *signer) separator(name, version, contract string) []byte {
	kind := "EIP712Domain(string name,string version,uint256 chainId"
	words := [][]byte{keccak([]byte(name)), keccak([]byte(version)), s.chainID()}
	if contract != "" {
		kind += ",address verifyingContract"
		words = append(words, word(s.contract(contract)))
	}
	return keccak(append([][]byte{keccak([]byte(kind + ")"))}, words...)...)
}

func (s *signer) sign(kind string, words ...any) []byte {
	var separator []byte
	switch kind {
	case "AskSnapshot":
		separator = s.separator("SVC Asks", "2", "ask_registry")
	case "SetIdentity", "RequestCapacity":
		separator = s.separator("SVC Providers", "2", "provider_registry")
	case "ReceiveWithAuthorization":
		token := s.chain["token_domain"].(object)
		separator = s.separator(token["name"].(string), token["version"].(string), "paytoken")
	case "Release":
		separator = s.separator("SVC Escrow", "1", "")
	case "SvcSession":
		separator = s.separator("SVC Session", "1", "")
	case "ResultKey":
		separator = s.separator("SVC Results", "1", "")
	default:
		separator = s.separator("SVC Jobs", "2", "job_registry")
	}
	return signed(s.secret, keccak([]byte{0x19, 0x01}, separator, structHash(kind, words...)))
}

func (s *signer) resultSecret() []byte {
	return hkdf(s.sign("ResultKey", keccak([]byte("result key"))), []byte("svc-result-key-v1"))
}

func (s *signer) signIn(role string) object {
	nonce := ask(200, "GET", "/auth/nonce?address="+s.owner(), "", nil)["nonce"].(string)
	signature := hexed(s.sign("SvcSession", s.address, keccak([]byte(nonce))))
	body := object{"address": s.owner(), "nonce": nonce, "signature": signature, "role": role}
	session := ask(200, "POST", "/auth/session", "", body)
	s.token = session["token"].(string)
	return session
}

// market returns the coordinator's deployment, which must match the address book.
func market() object {
	chain := ask(200, "GET", "/evm/chain", "", nil)
	if text := os.Getenv("SVC_ADDRESSES"); text != "" {
		var book object
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&book); err != nil {
			panic(err)
		}
		contracts := chain["contracts"].(object)
		names := map[string]string{"jobRegistry": "job_registry", "providerRegistry": "provider_registry",
			"askRegistry": "ask_registry", "paytoken": "paytoken"}
		same := fmt.Sprint(book["chainId"]) == fmt.Sprint(chain["chain_id"])
		for ours, theirs := range names {
			same = same && strings.EqualFold(book[ours].(string), contracts[theirs].(string))
		}
		ours, theirs := book["tokenDomain"].(object), chain["token_domain"].(object)
		if !same || ours["name"] != theirs["name"] || ours["version"] != theirs["version"] {
			panic(errors.New("this coordinator serves another deployment than the address book"))
		}
	}
	return chain
}

// --- containers and results ---

const frameBytes, overhead = 65536, 17

func (s *signer) info(label string, bound []byte) []byte {
	return bytes.Join([][]byte{[]byte(label), s.chainID(), s.contract("job_registry"), bound}, nil)
}

func random(length int) []byte {
	raw := make([]byte, length)
	must(rand.Read(raw))
	return raw
}

// sealedStream returns 0x01 ‖ seed_wrap (80) ‖ header (24) ‖ frames.
func sealedStream(recipient, info, plaintext []byte) []byte {
	seed, header := random(32), random(24)
	sealed := append([]byte{1}, sealBox(recipient, seed)...)
	sealed = append(sealed, header...)
	stream := newStream(hkdf(seed, info), header)
	for {
		piece := plaintext[:min(frameBytes, len(plaintext))]
		plaintext = plaintext[len(piece):]
		if len(plaintext) == 0 {
			return append(sealed, stream.push(piece, 3)...)
		}
		sealed = append(sealed, stream.push(piece, 0)...)
	}
}

func openedStream(key, ciphertext []byte) []byte {
	stream := newStream(key, ciphertext[:24])
	var plaintext []byte
	for rest := ciphertext[24:]; ; {
		frame := rest[:min(frameBytes+overhead, len(rest))]
		rest = rest[len(frame):]
		piece, tag := stream.pull(frame)
		plaintext = append(plaintext, piece...)
		last := len(rest) == 0
		if last != (tag == 3) || (!last && (tag != 0 || len(piece) != frameBytes)) {
			panic(errors.New("undecryptable"))
		}
		if last {
			return plaintext
		}
	}
}

func withSecret(secret, info, container []byte) []byte {
	if len(container) < 122 || container[0] != 1 {
		panic(errors.New("no container"))
	}
	return openedStream(hkdf(openBox(secret, container[1:81]), info), container[81:])
}

func ctHash(container []byte) []byte { return keccak(container[81:]) }

func commitment(container []byte) []byte {
	return keccak([]byte{1}, container[1:81], ctHash(container))
}

// canonical encodes by RFC 8785. Values come from encoding/json with UseNumber.
func canonical(value any) string {
	switch known := value.(type) {
	case object:
		keys := make([]string, 0, len(known))
		for key := range known {
			keys = append(keys, key)
		}
		sort.Slice(keys, func(i, j int) bool {
			one, other := utf16.Encode([]rune(keys[i])), utf16.Encode([]rune(keys[j]))
			for at := 0; at < len(one) && at < len(other); at++ {
				if one[at] != other[at] {
					return one[at] < other[at]
				}
			}
			return len(one) < len(other)
		})
		members := make([]string, len(keys))
		for at, key := range keys {
			members[at] = quoted(key) + ":" + canonical(known[key])
		}
		return "{" + strings.Join(members, ",") + "}"
	case []any:
		items := make([]string, len(known))
		for at, item := range known {
			items[at] = canonical(item)
		}
		return "[" + strings.Join(items, ",") + "]"
	case string:
		return quoted(known)
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(known)
	case int:
		return strconv.Itoa(known)
	case json.Number:
		return ecmaNumber(must(known.Float64()))
	}
	panic(fmt.Errorf("%T has no canonical spelling", value))
}

func ecmaNumber(value float64) string {
	if value == 0 {
		return "0"
	}
	size := value
	if size < 0 {
		size = -size
	}
	if size >= 1e-6 && size < 1e21 {
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	text := strconv.FormatFloat(value, 'e', -1, 64) // 1e+06, 1e-07: an exponent of two digits at least
	mantissa, exponent, _ := strings.Cut(text, "e")
	return mantissa + "e" + exponent[:1] + strings.TrimLeft(exponent[1:], "0")
}

func quoted(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, sign := range text {
		short := strings.IndexRune("\"\\\b\f\n\r\t", sign)
		switch {
		case short >= 0:
			out.WriteString([]string{`\"`, `\\`, `\b`, `\f`, `\n`, `\r`, `\t`}[short])
		case sign < 0x20:
			fmt.Fprintf(&out, `\u%04x`, sign)
		default:
			out.WriteRune(sign)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// strictly reads canonical JSON with exactly these members, and optionally `optional`.
func strictly(plaintext []byte, optional string, members ...string) object {
	var value object
	decoder := json.NewDecoder(bytes.NewReader(plaintext))
	decoder.UseNumber()
	if !utf8.Valid(plaintext) || decoder.Decode(&value) != nil || canonical(value) != string(plaintext) {
		panic(errors.New("malformed"))
	}
	count := len(members)
	if _, there := value[optional]; there {
		count++
	}
	for _, name := range members {
		if _, there := value[name]; !there {
			panic(fmt.Errorf("malformed: %s is missing", name))
		}
	}
	if len(value) != count || fmt.Sprint(value["v"]) != "1" {
		panic(errors.New("malformed: another member or version"))
	}
	return value
}

// --- buying ---

const mostGasFee = 10_000_000 // the most that this buyer pays for relaying

func unitsIn(input any) int64 {
	units := (int64(len(canonical(input))) + 3) / 4
	if units < 1 {
		return 1
	}
	return units
}

// amountOf returns the quote's amount if it matches the formulas.
func amountOf(order object, quote object, chain object) *big.Int {
	product := func(rate, units string) *big.Int { return new(big.Int).Mul(number(order[rate]), number(order[units])) }
	limit := new(big.Int).Add(product("rate_in", "units_in"), product("rate_out", "units_out"))
	million := big.NewInt(1_000_000)
	limit.Add(limit, big.NewInt(999_999)).Div(limit, million)
	if limit.Sign() == 0 {
		limit.SetInt64(1)
	}
	fee := new(big.Int).Mul(limit, number(chain["fee_bps"]))
	fee.Div(fee, big.NewInt(10_000))
	gas := number(quote["gas_fee"])
	amount := new(big.Int).Add(new(big.Int).Add(limit, fee), gas)
	right := number(quote["cap"]).Cmp(limit) == 0 && number(quote["fee"]).Cmp(fee) == 0
	if !right || number(quote["amount"]).Cmp(amount) != 0 || gas.Cmp(big.NewInt(mostGasFee)) > 0 {
		panic(fmt.Errorf("a quote of %v where %v is due", quote["amount"], amount))
	}
	return amount
}

func escrowKey() []byte {
	told := ask(200, "GET", "/key", "", nil)
	key, evidence := unhex(told["escrow_public_key"].(string)), told["evidence"].(object)
	due := sha256.Sum256(append(append([]byte{}, key...), "svc-coordinator-escrow-v1"...))
	if evidence["report_data"] != hex.EncodeToString(due[:]) || evidence["debug"] != false {
		panic(errors.New("evidence of another key"))
	}
	return key
}

// order is a signed order and its container.
func order(s *signer, input object, open bool) (object, []byte) {
	id := number(ask(200, "GET", "/v1/models/"+model, "", nil)["svc"].(object)["model_id"])
	body := object{"model_id": id, "sla_secs": 3600, "units_in": unitsIn(input), "units_out": input["max_output_tokens"]}
	var best object
	for _, each := range ask(402, "POST", "/v1/jobs", "", body)["candidates"].([]any) {
		candidate, wanted := each.(object), os.Getenv("SVC_PROVIDER")
		if best == nil && (wanted == "" || candidate["provider_id"] == wanted) {
			best = candidate
		}
	}
	if best == nil {
		panic(errors.New("nobody sells this now"))
	}
	designated, recipient := number(best["provider_id"]), unhex(best["box_key"].(string))
	if open {
		designated, recipient = big.NewInt(0), escrowKey()
	}
	resultKey := publicOf(s.resultSecret())
	envelope := object{"v": 1, "owner": s.owner(), "model": model, "input": input, "result_key": hexed(resultKey)}
	container := sealedStream(recipient, s.info("svc-dek-v1", s.address), []byte(canonical(envelope)))
	c, expires := commitment(container), now()+3600
	signature := s.sign("Order", c, id, 3600, number(best["rate_in"]), number(best["rate_out"]), unitsIn(input),
		number(body["units_out"]), designated, expires)
	body["c"], body["owner"], body["job_id"] = hexed(c), s.owner(), hexed(keccak(s.address, c))
	body["rate_in"], body["rate_out"], body["designated"] = best["rate_in"], best["rate_out"], designated
	body["expires_at"], body["signature"] = expires, hexed(signature)
	return body, container
}

func paid(s *signer, order object, container []byte, quote object) object {
	amount := amountOf(order, quote, s.chain)
	signature := s.sign("ReceiveWithAuthorization", s.address, s.contract("job_registry"), amount, 0,
		order["expires_at"].(int64)+1, unhex(order["job_id"].(string)))
	body := object{"amount": amount.String(), "auth_sig": hexed(signature)}
	for name, value := range order {
		body[name] = value
	}
	body["container"] = base64.StdEncoding.EncodeToString(container)
	return body
}

// submit posts the order. After a lost answer, it sends the same order again until the job exists.
func submit(s *signer, order object, container []byte) {
	quote := ask(402, "POST", "/v1/jobs", "", order)["quote"].(object)
	for attempt := 0; attempt < 6; attempt++ {
		found := once("POST", "/v1/jobs", "", paid(s, order, container, quote))
		if found != nil {
			if found.status == 201 || found.status == 504 || found.code() == "DuplicateJob" {
				return
			}
			if fresh, ok := found.body["quote"].(object); ok && found.status == 409 {
				quote = fresh
				continue
			}
			if !found.again {
				panic(errors.New(described(found)))
			}
		}
		pause(found, attempt)
		if seen := once("GET", "/v1/jobs/"+order["job_id"].(string), "", nil); seen != nil && seen.status == 200 {
			return
		}
	}
	panic(errors.New("no word of whether it was posted"))
}

func ended(id string, until int64) object {
	for wait := 250 * time.Millisecond; now() < until; wait = wait * 3 / 2 {
		if found := once("GET", "/v1/jobs/"+id, "", nil); found != nil && found.status == 200 {
			if found.body["id"] != id {
				panic(errors.New("told of another job"))
			}
			switch found.body["status"] {
			case "completed", "failed", "cancelled":
				return found.body
			}
		}
		if wait > 5*time.Second {
			wait = 5 * time.Second
		}
		time.Sleep(wait)
	}
	panic(fmt.Errorf("%s has not ended", id))
}

func resultOf(s *signer, job, cid string) any {
	plaintext := withSecret(s.resultSecret(), s.info("svc-result-v1", unhex(job)), fetched(cid))
	body := strictly(plaintext, "", "v", "job_id", "output", "usage")
	if body["job_id"] != job {
		panic(errors.New("the result of another job"))
	}
	return body["output"]
}

func text() string {
	if found := os.Getenv("SVC_INPUT"); found != "" {
		return found
	}
	return "sealed"
}

func buy(open bool) {
	s := newSigner(market())
	order, container := order(s, object{"input": text(), "max_output_tokens": 64}, open)
	submit(s, order, container)
	id := order["job_id"].(string)
	job := ended(id, order["expires_at"].(int64)+3600+120)
	if job["status"] != "completed" {
		panic(fmt.Errorf("the job %v", job["status"]))
	}
	fmt.Println(canonical(resultOf(s, id, job["result_cid"].(string))))
}

func batch(count int) {
	s := newSigner(market())
	var lines []string
	var jobs []string
	for n := 0; n < count; n++ {
		order, container := order(s, object{"input": fmt.Sprintf("%s %d", text(), n), "max_output_tokens": 64}, false)
		quote := ask(402, "POST", "/v1/jobs", "", order)["quote"].(object)
		lines = append(lines, string(must(json.Marshal(paid(s, order, container, quote)))))
		jobs = append(jobs, order["job_id"].(string))
	}
	lines = append(lines, `{"url": "/v1/responses"}`) // invalid, so that there is an error line as well
	s.signIn("client")
	upload := &form{}
	parts := multipart.NewWriter(&upload.bytes)
	must(0, parts.WriteField("purpose", "batch"))
	must(must(parts.CreateFormFile("file", "lines.jsonl")).Write([]byte(strings.Join(lines, "\n"))))
	must(0, parts.Close())
	upload.kind = parts.FormDataContentType()
	file := ask(200, "POST", "/v1/files", s.token, upload)
	body := object{"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "1h"}
	made := ask(200, "POST", "/v1/batches", s.token, body, "idempotency-key", hex.EncodeToString(random(16)))
	for made["status"] != "completed" {
		if status := made["status"]; status == "failed" || status == "expired" || status == "cancelled" {
			panic(fmt.Errorf("the batch %v", status))
		}
		time.Sleep(500 * time.Millisecond) // outside of tests, wait a minute
		made = ask(200, "GET", "/v1/batches/"+made["id"].(string), s.token, nil)
	}
	results, failures := map[string]any{}, []any{}
	for _, line := range linesOf(s, made["output_file_id"]) {
		details := line["svc"].(object)
		job := details["job_id"].(string)
		results[job] = resultOf(s, job, details["result_cid"].(string))
	}
	for _, line := range linesOf(s, made["error_file_id"]) {
		failures = append(failures, []any{line["svc"].(object)["line"], line["error"].(object)["code"]})
	}
	outputs := []any{}
	for _, job := range jobs {
		outputs = append(outputs, results[job])
	}
	fmt.Println(canonical(object{"status": made["status"], "outputs": outputs, "errors": failures}))
}

func linesOf(s *signer, file any) []object {
	id, there := file.(string)
	if !there {
		return nil
	}
	found := once("GET", "/v1/files/"+id+"/content", s.token, nil)
	var lines []object
	decoder := json.NewDecoder(bytes.NewReader(found.raw))
	decoder.UseNumber()
	for decoder.More() {
		var line object
		must(0, decoder.Decode(&line))
		lines = append(lines, line)
	}
	return lines
}

// --- providing ---

const rateIn, rateOut = 90_000, 180_000 // slightly below the other providers'

type provider struct {
	*signer
	box   []byte
	id    *big.Int
	model *big.Int
	lock  sync.Mutex
	free  int
	taken map[string]bool
}

// sessionOf returns the token, or a new one if the current one is `old`.
func (p *provider) sessionOf(old string) string {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.token == old {
		p.signIn("provider")
	}
	return p.token
}

// op sends the same bytes until they are answered, with a new session if the old one is unknown.
func (p *provider) op(body object) *answer {
	token := p.sessionOf("")
	var found *answer
	for attempt := 0; attempt < 8; attempt++ {
		found = once("POST", "/evm/ops", token, body)
		if found != nil && found.status == 401 {
			token = p.sessionOf(token)
		} else if found != nil && !found.again {
			return found
		} else {
			pause(found, attempt)
		}
	}
	return found
}

// announce publishes the box key, capacity and prices that are missing.
func (p *provider) announce() {
	record := ask(200, "GET", "/evm/providers/"+p.id.String(), "", nil)
	at, key := now(), publicOf(p.box)
	if record["box_key"] != hexed(key) {
		signature := hexed(p.sign("SetIdentity", key, keccak(), at))
		p.op(object{"op": "set_identity", "box_key": hexed(key), "evidence": "0x", "issued_at": at, "signature": signature})
	}
	if number(record["capacity"]).Int64() < 8 {
		signature := hexed(p.sign("RequestCapacity", 16, at))
		p.op(object{"op": "request_capacity", "n": 16, "issued_at": at, "signature": signature})
	}
	quotes := keccak(structHash("Ask", p.model, 3600, rateIn, rateOut))
	quote := object{"model_id": p.model, "sla": 3600, "rate_in": strconv.Itoa(rateIn), "rate_out": strconv.Itoa(rateOut)}
	snapshot := object{"provider_id": p.id, "signed_at": at, "quotes": []any{quote}}
	signature := hexed(p.sign("AskSnapshot", p.id, at, quotes))
	found := once("PUT", "/evm/asks", p.token, object{"snapshot": snapshot, "signature": signature})
	if found == nil || found.status != 200 {
		fmt.Fprintln(os.Stderr, "asks:", described(found))
	}
}

func provide() {
	p := &provider{signer: newSigner(market()), box: unhex(os.Getenv("SVC_BOX_KEY")), free: 8, taken: map[string]bool{}}
	p.id = number(p.signIn("provider")["provider_id"])
	p.model = number(ask(200, "GET", "/v1/models/"+model, "", nil)["svc"].(object)["model_id"])
	p.announce()
	fmt.Fprintf(os.Stderr, "provider %v is open\n", p.id)
	for {
		token := p.sessionOf("")
		query := fmt.Sprintf("/evm/jobs?state=Open&model=%v&free=%d", p.model, p.free)
		found := once("GET", query, token, nil)
		if found != nil && found.status == 401 {
			p.sessionOf(token)
		}
		if found != nil && found.status == 200 {
			for _, each := range found.body["jobs"].([]any) {
				p.take(each.(object))
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (p *provider) take(job object) {
	id := job["job_id"].(string)
	designated := fmt.Sprint(job["designated"])
	mine := designated == "0" || designated == p.id.String()
	p.lock.Lock()
	wanted := mine && p.free > 0 && !p.taken[id] && number(job["expires_at"]).Int64() > now()+5
	if wanted {
		p.taken[id] = true
		p.free--
	}
	p.lock.Unlock()
	if !wanted {
		return
	}
	go func() {
		defer func() {
			if trouble := recover(); trouble != nil {
				fmt.Fprintln(os.Stderr, id, trouble)
			}
			p.lock.Lock()
			p.free++
			p.lock.Unlock()
		}()
		p.work(id, job)
	}()
}

func (p *provider) work(id string, job object) {
	if !p.claimed(id) {
		return
	}
	until := now() + number(job["sla_secs"]).Int64()
	result, tokens, err := p.result(id, job)
	if err != nil {
		fmt.Fprintln(os.Stderr, id, "fails:", err)
		at := now()
		p.op(object{"op": "fail", "job_id": id, "issued_at": at, "signature": hexed(p.sign("Fail", unhex(id), at))})
		return
	}
	for now() < until {
		at := now()
		signature := hexed(p.sign("Settle", unhex(id), tokens, at))
		found := p.op(object{"op": "settle", "job_id": id, "completion_tok": tokens, "issued_at": at,
			"result": base64.StdEncoding.EncodeToString(result), "signature": signature})
		if found != nil && found.status == 201 {
			return
		}
		row := ask(200, "GET", "/evm/jobs/"+id, "", nil)
		if fmt.Sprint(row["state"]) != "1" { // the job has ended, by this settle or otherwise
			return
		}
		if found != nil && found.status == 409 && found.code() != "StaleOp" {
			return
		}
		time.Sleep(time.Second)
	}
}

// claimed returns true if the job is this provider's after a claim.
func (p *provider) claimed(id string) bool {
	at := now()
	found := p.op(object{"op": "claim", "job_id": id, "issued_at": at, "signature": hexed(p.sign("Claim", unhex(id), at))})
	if found != nil && found.status == 201 {
		return true
	}
	if found != nil && found.status == 409 && found.code() != "NotOpen" {
		return false
	}
	for look := 0; look < 5; look++ {
		row := ask(200, "GET", "/evm/jobs/"+id, "", nil)
		if state := fmt.Sprint(row["state"]); state != "0" {
			return state == "1" && row["provider_id"] == p.id.String()
		}
		time.Sleep(time.Second)
	}
	return false
}

// result runs the job. With an error, the job must be failed.
func (p *provider) result(id string, job object) (result []byte, tokens int64, err error) {
	defer func() {
		if trouble := recover(); trouble != nil {
			err = fmt.Errorf("%v", trouble)
		}
	}()
	container := fetched(job["task_cid"].(string))
	if len(container) < 122 || hexed(commitment(container)) != job["c"] {
		panic("bytes that are not the container")
	}
	var plaintext []byte
	if fmt.Sprint(job["designated"]) == "0" {
		plaintext = openedStream(p.released(id, container), container[81:])
	} else {
		plaintext = withSecret(p.box, p.info("svc-dek-v1", unhex(job["owner"].(string))), container)
	}
	envelope := strictly(plaintext, "custom_id", "v", "owner", "model", "input", "result_key")
	input := envelope["input"].(object)
	if envelope["owner"] != job["owner"] || envelope["model"] != model {
		panic("the envelope of another order")
	}
	if unitsIn(input) > number(job["units_in"]).Int64() {
		panic("more input than is paid for")
	}
	output := strings.ToUpper(fmt.Sprint(input["input"]))
	tokens = 1 + int64(len(output))/4
	if most := number(job["units_out"]).Int64(); tokens > most {
		tokens = most
	}
	body := object{"v": 1, "job_id": id, "output": object{"text": output}, "usage": object{"output_tokens": int(tokens)}}
	resultKey := unhex(envelope["result_key"].(string))
	return sealedStream(resultKey, p.info("svc-result-v1", unhex(id)), []byte(canonical(body))), tokens, nil
}

func (p *provider) released(id string, container []byte) []byte {
	secret := random(32)
	public, at := publicOf(secret), now()
	signature := p.sign("Release", unhex(id), keccak(container[1:81]), ctHash(container), public, at)
	body := object{"job_id": id, "seed_wrap": base64.StdEncoding.EncodeToString(container[1:81]),
		"ct_hash": hexed(ctHash(container)), "response_pubkey": hex.EncodeToString(public), "issued_at": at,
		"signature": hexed(signature)}
	told := ask(200, "POST", "/release", "", body)
	return openBox(secret, must(base64.StdEncoding.DecodeString(told["dek_sealed"].(string))))
}

func main() {
	defer func() {
		if trouble := recover(); trouble != nil {
			fmt.Fprintln(os.Stderr, "stranger:", trouble)
			os.Exit(1)
		}
	}()
	arguments := append(os.Args[1:], "", "")
	switch arguments[0] {
	case "buy":
		buy(arguments[1] == "--open")
	case "batch":
		batch(must(strconv.Atoi(arguments[1])))
	case "provide":
		provide()
	default:
		panic("buy [--open] | batch N | provide")
	}
}

// --- hashes and keys ---

var roundConstants = [24]uint64{
	0x1, 0x8082, 0x800000000000808a, 0x8000000080008000, 0x808b, 0x80000001, 0x8000000080008081, 0x8000000000008009,
	0x8a, 0x88, 0x80008009, 0x8000000a, 0x8000808b, 0x800000000000008b, 0x8000000000008089, 0x8000000000008003,
	0x8000000000008002, 0x8000000000000080, 0x800a, 0x800000008000000a, 0x8000000080008081, 0x8000000000008080,
	0x80000001, 0x8000000080008008,
}

// keccak is keccak256, with the padding from before SHA-3.
func keccak(parts ...[]byte) []byte {
	const rate = 136
	message := append(bytes.Join(parts, nil), 1)
	for len(message)%rate != 0 {
		message = append(message, 0)
	}
	message[len(message)-1] |= 0x80
	var a [25]uint64
	for ; len(message) > 0; message = message[rate:] {
		for lane := 0; lane < rate/8; lane++ {
			a[lane] ^= binary.LittleEndian.Uint64(message[8*lane:])
		}
		permute(&a)
	}
	out := make([]byte, 32)
	for lane := 0; lane < 4; lane++ {
		binary.LittleEndian.PutUint64(out[8*lane:], a[lane])
	}
	return out
}

func permute(a *[25]uint64) {
	for _, constant := range roundConstants {
		var c [5]uint64
		for x := range c {
			c[x] = a[x] ^ a[x+5] ^ a[x+10] ^ a[x+15] ^ a[x+20]
		}
		for at := range a {
			a[at] ^= c[(at+4)%5] ^ bits.RotateLeft64(c[(at+1)%5], 1)
		}
		x, y, lane := 1, 0, a[1]
		for t := 1; t <= 24; t++ {
			x, y = y, (2*x+3*y)%5
			lane, a[x+5*y] = a[x+5*y], bits.RotateLeft64(lane, t*(t+1)/2)
		}
		for row := 0; row < 25; row += 5 {
			var b [5]uint64
			copy(b[:], a[row:row+5])
			for x := range b {
				a[row+x] = b[x] ^ (^b[(x+1)%5] & b[(x+2)%5])
			}
		}
		a[0] ^= constant
	}
}

func hkdf(secret, info []byte) []byte {
	extract := hmac.New(sha256.New, make([]byte, 32))
	extract.Write(secret)
	expand := hmac.New(sha256.New, extract.Sum(nil))
	expand.Write(append(append([]byte{}, info...), 1))
	return expand.Sum(nil)
}

func fromHex(text string) *big.Int { return new(big.Int).SetBytes(unhex(text)) }

var (
	field  = fromHex("fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc2f")
	order_ = fromHex("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141")
	curveX = fromHex("79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
	curveY = fromHex("483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8")
)

func added(x1, y1, x2, y2 *big.Int) (*big.Int, *big.Int) {
	if x1 == nil {
		return x2, y2
	}
	slope := new(big.Int)
	if x1.Cmp(x2) == 0 {
		slope.Mul(big.NewInt(3), new(big.Int).Mul(x1, x1))
		slope.Mul(slope, new(big.Int).ModInverse(new(big.Int).Lsh(y1, 1), field))
	} else {
		run := new(big.Int).Sub(x2, x1)
		slope.Mul(new(big.Int).Sub(y2, y1), new(big.Int).ModInverse(run.Mod(run, field), field))
	}
	x := new(big.Int).Mul(slope, slope)
	x.Sub(x, x1).Sub(x, x2).Mod(x, field)
	y := new(big.Int).Sub(x1, x)
	y.Mul(y, slope).Sub(y, y1).Mod(y, field)
	return x, y
}

// multiplied is plain double-and-add: not in constant time, as a wallet's signer should be.
func multiplied(k, x, y *big.Int) (*big.Int, *big.Int) {
	var sumX, sumY *big.Int
	for at := 0; at < k.BitLen(); at++ {
		if k.Bit(at) == 1 {
			sumX, sumY = added(sumX, sumY, x, y)
		}
		x, y = added(x, y, x, y)
	}
	return sumX, sumY
}

// signed is r ‖ s ‖ v with the low s, its k by RFC 6979.
func signed(secret *big.Int, digest []byte) []byte {
	reduced := new(big.Int).Mod(new(big.Int).SetBytes(digest), order_)
	mac := func(key []byte, parts ...[]byte) []byte {
		code := hmac.New(sha256.New, key)
		code.Write(bytes.Join(parts, nil))
		return code.Sum(nil)
	}
	v, k := bytes.Repeat([]byte{1}, 32), make([]byte, 32)
	for _, separator := range []byte{0, 1} {
		k = mac(k, v, []byte{separator}, word(secret), word(reduced))
		v = mac(k, v)
	}
	for {
		v = mac(k, v)
		nonce := new(big.Int).SetBytes(v)
		if nonce.Sign() > 0 && nonce.Cmp(order_) < 0 {
			x, y := multiplied(nonce, curveX, curveY)
			r := new(big.Int).Mod(x, order_)
			s := new(big.Int).Mul(r, secret)
			s.Add(s, reduced).Mul(s, new(big.Int).ModInverse(nonce, order_)).Mod(s, order_)
			parity := byte(y.Bit(0))
			if s.Cmp(new(big.Int).Rsh(order_, 1)) > 0 {
				s.Sub(order_, s)
				parity ^= 1
			}
			if r.Sign() > 0 && s.Sign() > 0 {
				return bytes.Join([][]byte{word(r), word(s), {27 + parity}}, nil)
			}
		}
		k = mac(k, v, []byte{0})
		v = mac(k, v)
	}
}

// --- sealed boxes ---

func publicOf(secret []byte) []byte {
	return must(ecdh.X25519().NewPrivateKey(secret)).PublicKey().Bytes()
}

func shared(secret, public []byte) []byte {
	theirs := must(ecdh.X25519().NewPublicKey(public))
	return must(must(ecdh.X25519().NewPrivateKey(secret)).ECDH(theirs)) // refuses points of low order
}

func sealBox(recipient, plaintext []byte) []byte {
	secret := random(32)
	public := publicOf(secret)
	nonce := blake2b24(append(append([]byte{}, public...), recipient...))
	stream := xsalsa(shared(secret, recipient), nonce, 32+len(plaintext))
	cipher := xored(plaintext, stream[32:])
	return bytes.Join([][]byte{public, poly1305(stream[:32], cipher), cipher}, nil)
}

func openBox(secret, sealed []byte) []byte {
	public, tag, cipher := sealed[:32], sealed[32:48], sealed[48:]
	nonce := blake2b24(append(append([]byte{}, public...), publicOf(secret)...))
	stream := xsalsa(shared(secret, public), nonce, 32+len(cipher))
	if !hmac.Equal(tag, poly1305(stream[:32], cipher)) {
		panic(errors.New("unseal_failed"))
	}
	return xored(cipher, stream[32:])
}

func xored(one, other []byte) []byte {
	out := make([]byte, len(one))
	for at := range one {
		out[at] = one[at] ^ other[at]
	}
	return out
}

func words(parts ...[]byte) (out [16]uint32) {
	joined := bytes.Join(parts, nil)
	for at := range out {
		out[at] = binary.LittleEndian.Uint32(joined[4*at:])
	}
	return out
}

func unwords(words []uint32) []byte {
	out := make([]byte, 4*len(words))
	for at, each := range words {
		binary.LittleEndian.PutUint32(out[4*at:], each)
	}
	return out
}

var sigma = []byte("expand 32-byte k")

func salsaRounds(x [16]uint32) [16]uint32 {
	quarter := func(a, b, c, d int) {
		x[b] ^= bits.RotateLeft32(x[a]+x[d], 7)
		x[c] ^= bits.RotateLeft32(x[b]+x[a], 9)
		x[d] ^= bits.RotateLeft32(x[c]+x[b], 13)
		x[a] ^= bits.RotateLeft32(x[d]+x[c], 18)
	}
	for round := 0; round < 10; round++ {
		quarter(0, 4, 8, 12)
		quarter(5, 9, 13, 1)
		quarter(10, 14, 2, 6)
		quarter(15, 3, 7, 11)
		quarter(0, 1, 2, 3)
		quarter(5, 6, 7, 4)
		quarter(10, 11, 8, 9)
		quarter(15, 12, 13, 14)
	}
	return x
}

func salsaBlock(key, input []byte) [16]uint32 {
	return words(sigma[:4], key[:16], sigma[4:8], input, sigma[8:12], key[16:], sigma[12:])
}

func hsalsa(key, input []byte) []byte {
	x := salsaRounds(salsaBlock(key, input))
	return unwords([]uint32{x[0], x[5], x[10], x[15], x[6], x[7], x[8], x[9]})
}

// xsalsa is the key stream of crypto_box for this shared secret.
func xsalsa(secret, nonce []byte, length int) []byte {
	key := hsalsa(hsalsa(secret, make([]byte, 16)), nonce[:16])
	var out []byte
	for counter := uint64(0); len(out) < length; counter++ {
		block := salsaBlock(key, append(append([]byte{}, nonce[16:]...), binary.LittleEndian.AppendUint64(nil, counter)...))
		mixed := salsaRounds(block)
		for at := range mixed {
			mixed[at] += block[at]
		}
		out = append(out, unwords(mixed[:])...)
	}
	return out[:length]
}

func poly1305(key, message []byte) []byte {
	littleEndian := func(raw []byte) *big.Int {
		turned := make([]byte, len(raw))
		for at, each := range raw {
			turned[len(raw)-1-at] = each
		}
		return new(big.Int).SetBytes(turned)
	}
	clamp := fromHex("0ffffffc0ffffffc0ffffffc0fffffff")
	r := new(big.Int).And(littleEndian(key[:16]), clamp)
	prime := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 130), big.NewInt(5))
	sum := new(big.Int)
	for at := 0; at < len(message); at += 16 {
		piece := append(append([]byte{}, message[at:min(at+16, len(message))]...), 1)
		sum.Add(sum, littleEndian(piece)).Mul(sum, r).Mod(sum, prime)
	}
	sum.Add(sum, littleEndian(key[16:32]))
	big16, out := word(sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128))), make([]byte, 16)
	for at := range out {
		out[at] = big16[31-at]
	}
	return out
}

var blakeIV = [8]uint64{
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
}

var blakeSigma = [10][16]int{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
	{11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
	{9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
	{12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
	{6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}

// blake2b24 is BLAKE2b with 24 bytes of output, of at most one block.
func blake2b24(message []byte) []byte {
	h := blakeIV
	h[0] ^= 0x01010000 ^ 24
	var m [16]uint64
	padded := append(append([]byte{}, message...), make([]byte, 128-len(message))...)
	for at := range m {
		m[at] = binary.LittleEndian.Uint64(padded[8*at:])
	}
	var v [16]uint64
	copy(v[:8], h[:])
	copy(v[8:], blakeIV[:])
	v[12] ^= uint64(len(message))
	v[14] = ^v[14]
	mix := func(a, b, c, d int, x, y uint64) {
		v[a] += v[b] + x
		v[d] = bits.RotateLeft64(v[d]^v[a], -32)
		v[c] += v[d]
		v[b] = bits.RotateLeft64(v[b]^v[c], -24)
		v[a] += v[b] + y
		v[d] = bits.RotateLeft64(v[d]^v[a], -16)
		v[c] += v[d]
		v[b] = bits.RotateLeft64(v[b]^v[c], -63)
	}
	for round := 0; round < 12; round++ {
		s := blakeSigma[round%10]
		for at := 0; at < 4; at++ {
			mix(at, at+4, at+8, at+12, m[s[2*at]], m[s[2*at+1]])
		}
		for at := 0; at < 4; at++ {
			mix(at, (at+1)%4+4, (at+2)%4+8, (at+3)%4+12, m[s[2*at+8]], m[s[2*at+9]])
		}
	}
	out := []byte{}
	for at := 0; at < 3; at++ {
		out = binary.LittleEndian.AppendUint64(out, h[at]^v[at]^v[at+8])
	}
	return out
}

// --- secretstream, as described on the page ---

type stream struct {
	key, nonce []byte
}

func newStream(key, header []byte) *stream {
	x := chachaRounds(words(sigma, key, header[:16]))
	subkey := unwords(append(append([]uint32{}, x[:4]...), x[12:]...))
	return &stream{subkey, append([]byte{1, 0, 0, 0}, header[16:]...)}
}

func chachaRounds(x [16]uint32) [16]uint32 {
	quarter := func(a, b, c, d int) {
		x[a] += x[b]
		x[d] = bits.RotateLeft32(x[d]^x[a], 16)
		x[c] += x[d]
		x[b] = bits.RotateLeft32(x[b]^x[c], 12)
		x[a] += x[b]
		x[d] = bits.RotateLeft32(x[d]^x[a], 8)
		x[c] += x[d]
		x[b] = bits.RotateLeft32(x[b]^x[c], 7)
	}
	for round := 0; round < 10; round++ {
		for at := 0; at < 4; at++ {
			quarter(at, at+4, at+8, at+12)
		}
		for at := 0; at < 4; at++ {
			quarter(at, (at+1)%4+4, (at+2)%4+8, (at+3)%4+12)
		}
	}
	return x
}

// blocks is ChaCha20's key stream from this block on.
func (s *stream) blocks(counter uint32, length int) []byte {
	var out []byte
	for ; len(out) < length; counter++ {
		block := words(sigma, s.key, binary.LittleEndian.AppendUint32(nil, counter), s.nonce)
		mixed := chachaRounds(block)
		for at := range mixed {
			mixed[at] += block[at]
		}
		out = append(out, unwords(mixed[:])...)
	}
	return out[:length]
}

func (s *stream) mac(block, cipher []byte) []byte {
	lengths := binary.LittleEndian.AppendUint64(make([]byte, 8), uint64(64+len(cipher)))
	message := bytes.Join([][]byte{block, cipher, make([]byte, len(cipher)%16), lengths}, nil)
	return poly1305(s.blocks(0, 32), message)
}

func (s *stream) step(mac []byte) {
	copy(s.nonce[4:], xored(s.nonce[4:], mac[:8]))
	binary.LittleEndian.PutUint32(s.nonce, binary.LittleEndian.Uint32(s.nonce)+1)
}

func (s *stream) push(plaintext []byte, tag byte) []byte {
	block := xored(append([]byte{tag}, make([]byte, 63)...), s.blocks(1, 64))
	cipher := xored(plaintext, s.blocks(2, len(plaintext)))
	mac := s.mac(block, cipher)
	s.step(mac)
	return bytes.Join([][]byte{block[:1], cipher, mac}, nil)
}

func (s *stream) pull(sealed []byte) ([]byte, byte) {
	if len(sealed) < overhead {
		panic(errors.New("undecryptable"))
	}
	cipher, mac := sealed[1:len(sealed)-16], sealed[len(sealed)-16:]
	keystream := s.blocks(1, 64)
	tag := sealed[0] ^ keystream[0]
	block := append([]byte{sealed[0]}, keystream[1:]...)
	if !hmac.Equal(mac, s.mac(block, cipher)) {
		panic(errors.New("undecryptable"))
	}
	plaintext := xored(cipher, s.blocks(2, len(cipher)))
	s.step(mac)
	return plaintext, tag
}
