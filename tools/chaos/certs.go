package main

import (
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// issuer lets certstest create certificates outside a test. Nothing may fail.
type issuer struct{ testing.TB }

// Helper implements [testing.TB].
func (issuer) Helper() {}

// Fatal implements [testing.TB].
func (issuer) Fatal(args ...any) { panic(fmt.Sprint(args...)) } //nolint:forbidigo // must not return, and is never called

// authority is a CA.
type authority struct{ *certstest.CA }

func newAuthority(name string) authority { return authority{certstest.NewCA(issuer{}, name)} }

// issue signs a certificate. Unset fields of the template get values for a server on 127.0.0.1 or a client, valid today.
func (a authority) issue(template x509.Certificate) certstest.Pair {
	return a.Issue(issuer{}, template)
}
