package recorded

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// DefaultFormat is the format of Envoy's access logs unless its configuration has another one.
const DefaultFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" ` +
	`"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

// istioFormat is that of Istio's proxies, likewise.
const istioFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% ` +
	`%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%`

// common and combined are formats of Apache's logs, of which nginx has the second one too; forwarded is what nginx.org's packages
// of nginx write.
const (
	common    = `%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %IDENT% %USER% [%START_TIME(%d/%b/%Y:%H:%M:%S %z)%] "%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%" %RESPONSE_CODE% %BYTES_SENT%`
	combined  = common + ` "%REQ(REFERER)%" "%REQ(USER-AGENT)%"`
	forwarded = combined + ` "%REQ(X-FORWARDED-FOR)%"`
)

// namedFormats returns the formats that have a name; the first line of a log tells which of several it is.
func namedFormats(name string) []string {
	return map[string][]string{
		"nginx":    {forwarded, combined},
		"apache":   {combined, common},
		"combined": {combined},
		"common":   {common},
	}[name]
}

const formatNames = "nginx, apache, combined or common"

var errNotFormat = errors.New("the line is not of the log's format")

// textFormat reads values from a text that was written in a format. It is the layout of a log of lines of text.
type textFormat struct {
	ops      []operator
	literals [][]byte // before each of ops, and at the end
}

func newTextFormat(text string) (*textFormat, error) {
	pieces, err := parseFormat(strings.TrimRight(text, "\r\n"))
	if err != nil {
		return nil, err
	}
	f := &textFormat{literals: [][]byte{nil}}
	for _, p := range pieces {
		if p.op == nil {
			f.literals[len(f.literals)-1] = []byte(p.text)
			continue
		}
		if n := len(f.ops); n > 0 && len(f.literals[n]) == 0 {
			return nil, fmt.Errorf("%v%v: with nothing between them, there is no telling where the first one ends", f.ops[n-1], *p.op)
		}
		f.ops = append(f.ops, *p.op)
		f.literals = append(f.literals, nil)
	}
	if len(f.ops) == 0 {
		return nil, fmt.Errorf("%q: a format has operators, such as %%START_TIME%%, or is "+formatNames, text)
	}
	return f, nil
}

// split appends the value of each operator in line to values, nil where there is none. A value ends where the text that
// follows it in the format comes first; the last one ends where the line does.
func (f *textFormat) split(line []byte, values [][]byte) ([][]byte, error) {
	line, ok := bytes.CutPrefix(line, f.literals[0])
	if !ok {
		return values, errNotFormat
	}
	for i := range f.ops {
		next := f.literals[i+1]
		var value []byte
		if i == len(f.ops)-1 {
			if value, ok = bytes.CutSuffix(line, next); !ok {
				return values, errNotFormat
			}
		} else if value, line, ok = bytes.Cut(line, next); !ok {
			return values, errNotFormat
		}
		if string(value) == "-" {
			value = nil
		}
		values = append(values, value)
	}
	return values, nil
}

func (f *textFormat) find(want operator) (int, bool) {
	for i, o := range f.ops {
		if o.gives(want) {
			return i, true
		}
	}
	return 0, false
}

func (f *textFormat) clock(i int) (clockFormat, error) { return clockOf(f.ops[i]) }

func (*textFormat) what() string { return "the format of the log" }
