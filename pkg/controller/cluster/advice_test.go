package cluster

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestTheWordsOfAnErrorAreTheSameAtEachAttempt(t *testing.T) {
	for text, want := range map[string]string{
		"error reading from server: read tcp 10.0.0.1:9807->10.0.0.2:40312: connection reset by peer": "error reading from server: connection reset by peer",
		"error reading from server: read tcp [fd00::1]:9807->[fd00::2]:40312: i/o timeout":            "error reading from server: i/o timeout",
		"lvmd is stopping": "lvmd is stopping",
	} {
		for _, err := range []error{status.Error(codes.Unavailable, text), errors.New(text)} {
			if got := Words(err); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}
