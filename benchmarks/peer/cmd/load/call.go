package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// The API server's default timeout of a webhook call.
const timeout = 10 * time.Second

// The API server's client retries this often after a Retry-After.
const retries = 10

type counter struct{ value atomic.Int64 }

func (c *counter) take() int64 { return c.value.Add(1) - 1 }

// newClient returns a client like the API server's for webhooks: HTTP/1.1 with a keep-alive of 90 s.
func newClient(chosen options) (*http.Client, error) {
	pem, err := os.ReadFile(chosen.ca)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", chosen.ca)
	}
	dialer := &net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		TLSHandshakeTimeout: timeout,
		MaxConnsPerHost:     chosen.connections,
		MaxIdleConnsPerHost: chosen.connections,
		IdleConnTimeout:     90 * time.Second,
		DisableKeepAlives:   chosen.fresh,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
	}
	return &http.Client{Transport: transport, Timeout: timeout}, nil
}

// caller sends requests sequentially, and records the exact duration of each.
type caller struct {
	client       *http.Client
	url          string
	body, uid    []byte
	places       []int
	number, sent int
	took         []time.Duration
	failed       map[string]int
	answer       bytes.Buffer
}

func newCaller(client *http.Client, url string, review []byte, number int) (*caller, error) {
	var sample struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.Unmarshal(review, &sample); err != nil {
		return nil, fmt.Errorf("the review: %w", err)
	}
	if len(sample.Request.UID) != 36 {
		return nil, errors.New("the review has no uid of 36 characters")
	}
	made := &caller{client: client, url: url, body: bytes.Clone(review), number: number, failed: map[string]int{}}
	for from := 0; ; {
		found := bytes.Index(review[from:], []byte(sample.Request.UID))
		if found < 0 {
			return made, nil
		}
		made.places = append(made.places, from+found)
		from += found + len(sample.Request.UID)
	}
}

func (c *caller) run(timing *schedule) {
	for {
		due := timing.wait()
		if due.After(timing.to) {
			return
		}
		// In an open loop that can't keep up, a request that was due but never sent counts as failed.
		if time.Now().After(timing.to.Add(timeout)) {
			if !due.Before(timing.from) {
				c.failed["never sent"]++
			}
			continue
		}
		kind := c.call()
		end := time.Now()
		switch {
		case due.Before(timing.from) || (timing.rate <= 0 && end.After(timing.to)):
		case kind == "":
			c.took = append(c.took, end.Sub(due))
		default:
			c.failed[kind]++
		}
	}
}

// call sends one review with a unique uid, and returns what is wrong with the answer, or "".
func (c *caller) call() string {
	c.uid = fmt.Appendf(c.uid[:0], "%08x-0000-4000-8000-%012x", c.number, c.sent)
	c.sent++
	for _, place := range c.places {
		copy(c.body[place:], c.uid)
	}
	kind := c.exchange()
	if kind != "" {
		// The transport may still be reading the old body.
		c.body = bytes.Clone(c.body)
	}
	return kind
}

func (c *caller) exchange() string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for try := 0; ; try++ {
		code, wait, err := c.post(ctx)
		switch {
		case err != nil:
			return kindOf(err)
		case code == http.StatusOK:
			return c.judge()
		case wait < 0 || try == retries:
			return fmt.Sprintf("status %d", code)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Sprintf("status %d until the timeout", code)
		}
	}
}

// post returns the status and the delay before a retry. A negative delay means no retry.
func (c *caller) post(ctx context.Context) (int, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(c.body))
	if err != nil {
		return 0, -1, err
	}
	request.Header.Set("Accept", "application/json, */*")
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "kube-apiserver-admission")
	response, err := c.client.Do(request)
	if err != nil {
		return 0, -1, err
	}
	defer response.Body.Close()
	c.answer.Reset()
	if _, err := io.Copy(&c.answer, response.Body); err != nil {
		return 0, -1, err
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || (response.StatusCode != http.StatusTooManyRequests && response.StatusCode < 500) {
		return response.StatusCode, -1, nil
	}
	return response.StatusCode, time.Duration(seconds) * time.Second, nil
}

// judge checks the uid, allowed and patch of an answer. It compares bytes, because decoding each answer would cost more
// than the request.
func (c *caller) judge() string {
	switch answer := c.answer.Bytes(); {
	case !bytes.Contains(answer, c.uid):
		return "another uid"
	case !bytes.Contains(answer, []byte(`"allowed":true`)):
		return "not allowed"
	case !bytes.Contains(answer, []byte(`"patch":"`)):
		return "no patch"
	}
	return ""
}

func kindOf(err error) string {
	var timed net.Error
	switch {
	case errors.As(err, &timed) && timed.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	}
	return err.Error()
}
