package logging

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

func TestLoggerFlags(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		wantErr string
	}{
		{name: "the defaults are accepted"},
		{name: "text and debug are accepted", args: []string{"--log-format=text", "--log-level=debug"}},
		{name: "an unknown level names the flag and what is allowed", args: []string{"--log-level=loud"}, wantErr: `--log-level: "loud" is not one of debug`},
		{name: "an unknown format names the flag and what is allowed", args: []string{"--log-format=xml"}, wantErr: `--log-format: "xml" is not one of json`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
			options := AddFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatalf("Parse: %v", err)
			}
			_, err := options.Logger(&bytes.Buffer{})
			switch {
			case test.wantErr == "" && err != nil:
				t.Errorf("want no error, got %v", err)
			case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
				t.Errorf("want an error with %q, got %v", test.wantErr, err)
			}
		})
	}
}

func TestKlogLinesReachTheSameStream(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options := AddFlags(flags)
	var out bytes.Buffer
	if _, err := options.Logger(&out); err != nil {
		t.Fatalf("Logger: %v", err)
	}
	klog.InfoS("from a library", "answer", 42)
	klog.Flush()
	if got := out.String(); !strings.Contains(got, `"msg":"from a library"`) || !strings.Contains(got, `"answer":42`) {
		t.Errorf("want klog's line as JSON, got %q", got)
	}
}

func TestDurationsAreWrittenAsPeopleDo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                     "0s",
		873:                   "873ns",
		17548544:              "17.55ms",
		168049232:             "168ms",
		-1559565568:           "-1.56s",
		90 * time.Second:      "1m30s",
		3*time.Hour + 7123456: "3h0m0s",
		1 << 62:               "1281023h53m38s",
	} {
		for _, format := range []string{"json", "text"} {
			var out bytes.Buffer
			log, err := (&Options{level: "info", format: format}).Logger(&out)
			if err != nil {
				t.Fatal(err)
			}
			log.With("waited", d).WithGroup("call").Info("done", "duration", d)
			for _, key := range []string{"waited", "duration"} {
				if got := out.String(); !strings.Contains(got, key+`":"`+want+`"`) && !strings.Contains(got, key+"="+want) {
					t.Errorf("%s of %d ns in %s: want %s, got %s", key, d, format, want, got)
				}
			}
		}
	}
}
