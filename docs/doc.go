// Package docs holds the documents against the code. Its tests check that links lead
// somewhere, that commands, flags, metrics, Events and conditions that the pages name exist,
// that configurations in them are valid, and that the pages of docs/reference are current.
package docs
