package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// adoptingNode fakes carve-lvmd on a node that has one logical volume of another driver.
type adoptingNode struct {
	lv string
	// id, name and from are the adopted volume's id, name and, until the confirmation, former name.
	id, name, from string
	// asked records the subcommands, and given the arguments of the last adoption. failing is a
	// subcommand that fails.
	asked   []string
	given   []string
	failing string
	// as is the id that an adoption assigns; empty means cvadopted.
	as string
}

var errNode = errors.New("the node says no")

func (n *adoptingNode) print(id string) string {
	return fmt.Sprintf(`{"id":%q,"name":%q,"deviceClass":"local","sizeBytes":"1073741824","fsType":"xfs","vgName":"vg","vgUuid":"u-1","adoptedFrom":%q}`+"\n",
		id, n.name, n.from)
}

func (n *adoptingNode) run(_ context.Context, _, container string, argv ...string) (string, error) {
	if container != "lvmd" || argv[0] != "carve-lvmd" {
		return "", fmt.Errorf("%s %q is no carve-lvmd", container, argv)
	}
	verb, args := argv[1], argv[2:]
	if slices.Contains(args, "--dry-run") {
		verb = "try"
	}
	n.asked = append(n.asked, verb)
	if verb == n.failing {
		return "", errNode
	}
	switch verb {
	case "try", "adopt":
		return n.adopt(verb, args)
	case "volumes":
		if n.id == "" {
			return "", nil
		}
		return n.print(n.id), nil
	case "confirm-adoption":
		if args[0] != n.id {
			return "", errNode
		}
		n.from = ""
		return n.print(n.id), nil
	case "revert-adoption":
		if args[0] != n.id || n.from == "" {
			return "", errNode
		}
		n.lv, n.id, n.from = n.from, "", ""
		return "vg/" + n.lv + "\n", nil
	}
	return "", fmt.Errorf("unknown: %q", argv)
}

func (n *adoptingNode) adopt(verb string, args []string) (string, error) {
	n.given = args
	lv, name := args[len(args)-2], args[len(args)-1]
	switch {
	case n.id != "" && n.name == name && n.from == lv:
		return n.print(n.id), nil
	case n.lv != lv || !strings.HasPrefix(name, "pvc-"):
		return "", errNode
	}
	n.name = name
	if verb == "try" {
		return strings.Replace(n.print(""), `"id":"",`, "", 1), nil
	}
	n.id, n.from, n.lv = cmp.Or(n.as, "cvadopted"), lv, ""
	return n.print(n.id), nil
}
