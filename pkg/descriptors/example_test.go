package descriptors_test

import (
	"fmt"
	"log"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func ExampleLoad() {
	rules := `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: user
    value: alice
    rate_limit: {unit: minute, requests_per_unit: 50}
`
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "shop.yaml", Data: []byte(rules)}}, descriptors.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(problems), "problems")
	shop := set.Domain([]byte("shop"))
	for _, user := range []string{"alice", "bob"} {
		m := shop.Match([]descriptors.Entry{{Key: []byte("user"), Value: []byte(user)}})
		fmt.Println(user, m.Rule.LimitText())
	}
	fmt.Println(shop.Match([]descriptors.Entry{{Key: []byte("path"), Value: []byte("/")}}).Rule)

	// Errors contain the position and the accepted values.
	rules = "domain: shop\ndescriptors: [{value: alice}]\n"
	_, _, err = descriptors.Load([]descriptors.Source{{Name: "shop.yaml", Data: []byte(rules)}}, descriptors.Options{})
	fmt.Println(err)
	// Output:
	// 0 problems
	// alice 50 per minute
	// bob 5 per minute
	// <nil>
	// shop.yaml:2:15: shop.?: descriptor has empty key: use the key of an entry
}
