package contextpath_test

import (
	"fmt"

	"github.com/foldgate/foldgate/folding/contextpath"
)

func Example() {
	p, err := contextpath.Parse("br_1f0c/br_77aa")
	fmt.Println(p.Parent(), p.InTree("br_1f0c"), err)
	sub, err := p.Join("analysis")
	fmt.Println(sub, err)
	_, err = p.Join("../br_2222")
	fmt.Println(err)
	// Output:
	// br_1f0c true <nil>
	// br_1f0c/br_77aa/analysis <nil>
	// context "../br_2222": byte 0 is not allowed; use ASCII letters, digits, '-' and '_', joined by '/'
}
