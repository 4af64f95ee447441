package recorded

import (
	"fmt"
	"strconv"
	"strings"
)

// operator is a command operator of Envoy's access logs, such as %REQ(X-ENVOY-ORIGINAL-PATH?:PATH):80%, or the name of a
// field or column.
type operator struct {
	name string // in the one spelling that there is here
	arg  string // of headers in lower case
	or   string // the header that is written where the first one is missing
	most int    // bytes that are written; 0 if all are
}

// String returns o as it would be written in a format.
func (o operator) String() string {
	text := o.name
	if o.arg != "" {
		arg := o.arg
		if o.ofHeader() {
			arg = strings.ToUpper(arg)
		}
		if o.or != "" {
			arg += "?" + strings.ToUpper(o.or)
		}
		text += "(" + arg + ")"
	}
	return "%" + text + "%"
}

func (o operator) ofHeader() bool {
	return o.name == opRequest || o.name == opResponse || o.name == opTrailer
}

// gives reports whether o writes what want asks for. A time without a format may be written in any.
func (o operator) gives(want operator) bool {
	if o.name != want.name || o.most > 0 {
		return false
	}
	return o.arg == want.arg || o.or != "" && o.or == want.arg || want == operator{name: opStart}
}

// The operators that mean something here. Others are fields like any other.
const (
	opStart        = "START_TIME"
	opDuration     = "DURATION"
	opFlags        = "RESPONSE_FLAGS"
	opCode         = "RESPONSE_CODE"
	opRequest      = "REQ"
	opResponse     = "RESP"
	opTrailer      = "TRAILER"
	opAddress      = "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
	opAddressPort  = "DOWNSTREAM_REMOTE_ADDRESS"
	opQuery        = "QUERY_PARAM"
	opCluster      = "UPSTREAM_CLUSTER"
	opClusterRaw   = "UPSTREAM_CLUSTER_RAW"
	opMetadata     = "DYNAMIC_METADATA"
	opAnyMetadata  = "METADATA"
	headerPath     = ":path"
	headerHost     = ":authority"
	maxHitsAddend  = 1_000_000_000
	maxFormatBytes = 64 << 10
)

// parseOperator parses what stands between two percent signs.
func parseOperator(text string) (operator, error) {
	o := operator{name: text}
	if open := strings.IndexByte(text, '('); open >= 0 {
		end := strings.LastIndexByte(text, ')')
		if end < open {
			return o, fmt.Errorf("%%%s%%: there is no closing parenthesis", text)
		}
		rest := text[end+1:]
		o.name, o.arg = text[:open], text[open+1:end]
		if rest != "" {
			n, err := strconv.Atoi(strings.TrimPrefix(rest, ":"))
			if err != nil || n <= 0 || rest[0] != ':' {
				return o, fmt.Errorf("%%%s%%: after the parenthesis there may be a length, such as :80, and nothing else", text)
			}
			o.most = n
		}
	}
	if o.name == "" {
		return o, fmt.Errorf("%%%s%%: an operator has a name", text)
	}
	switch o.name {
	case "REQUEST_HEADER":
		o.name = opRequest
	case "RESPONSE_HEADER":
		o.name = opResponse
	case "RESPONSE_TRAILER":
		o.name = opTrailer
	case "START_TIME_LOCAL":
		return o, fmt.Errorf("%%%s%%: local times are not known elsewhere: use %%START_TIME%%", text)
	}
	if o.ofHeader() {
		first, second, _ := strings.Cut(strings.ToLower(o.arg), "?")
		if first == "host" && o.name == opRequest {
			first = headerHost
		}
		if o.arg, o.or = first, second; o.arg == "" {
			return o, fmt.Errorf("%%%s%%: there is no name of a header, as in %%%s(X-USER)%%", text, o.name)
		}
	}
	return o, nil
}

// piece is a part of a format: an operator, or else a text.
type piece struct {
	text string
	op   *operator
}

// parseFormat cuts a format string into its pieces. Two percent signs are one.
func parseFormat(text string) (pieces []piece, err error) {
	if len(text) > maxFormatBytes {
		return nil, fmt.Errorf("a format of %d bytes: the longest has %d", len(text), maxFormatBytes)
	}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			pieces = append(pieces, piece{text: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); {
		if text[i] != '%' {
			literal.WriteByte(text[i])
			i++
			continue
		}
		if strings.HasPrefix(text[i:], "%%") {
			literal.WriteByte('%')
			i += 2
			continue
		}
		end := endOfOperator(text, i+1)
		if end < 0 {
			return nil, fmt.Errorf("%q: a percent sign begins an operator, which another one ends, as in %%REQ(:PATH)%%; write %%%% for a percent sign", text[i:])
		}
		op, err := parseOperator(text[i+1 : end])
		if err != nil {
			return nil, err
		}
		flush()
		pieces = append(pieces, piece{op: &op})
		i = end + 1
	}
	flush()
	return pieces, nil
}

// endOfOperator returns where the percent sign is that ends an operator, of which there may be others in parentheses.
func endOfOperator(text string, from int) int {
	depth := 0
	for i := from; i < len(text); i++ {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		case '%':
			if depth <= 0 {
				return i
			}
		}
	}
	return -1
}
