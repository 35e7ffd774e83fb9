"""A spec goes in; its recurrent, chunked, backward and decode forms come out, as equations that can
be printed in a paper's notation and evaluated.

    document = derive(plain(spec), modes(plain(spec)))
    print(as_text(document))

An equation is data (`terms`): what is printed (`written`) is what is evaluated
(`values`, `checking`).
"""
