// Package modules has the tests of what the modules of this tree have in common.
package modules
